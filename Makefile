# Each target makes what it needs. A fresh clone and Python 3.11 or newer are enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TIMES ?= 50
JOBS ?= 2
PIP := $(BIN)/pip --disable-pip-version-check

.PHONY: help site package demo demo-llm test test-engines simulate soak fuzz lint diagrams docs bench clean

help:
	@echo "make demo          206 prompts to a small built-in server that crashes once on the way (no model, half a minute)"
	@echo "make demo-llm      a real model on the CPU: llama.cpp and Gemma 3 270M (compiled once, about 10 minutes)"
	@echo "make test          all tests that need no engine"
	@echo "make test-engines  the tests with real engines: llama.cpp, vLLM and SGLang on the CPU, the router (8 GB of disk)"
	@echo "make simulate      $(TIMES) times as many random lives of a server as make test (TIMES=...);"
	@echo "                   SECONDS=N: the whole system on new seeds for so long; SEED=N: one seed again, with a diagram"
	@echo "make soak          jobs on real processes with a fault every few seconds, for SECONDS=$(or $(SECONDS),60)"
	@echo "make fuzz          broken logs, journals, outputs, inputs and streams, for SECONDS=$(or $(SECONDS),60)"
	@echo "make lint          ruff, mypy --strict, and whether diagrams/ is up to date"
	@echo "make diagrams      draw diagrams/ again"
	@echo "make docs          write docs/settings.md and docs/faults.md again"
	@echo "make site          make the documentation's pages in docs/_build; a broken link fails"
	@echo "make package       see that the wheel and the source distribution install and run in empty environments"
	@echo "make bench         the figures of the README, beside datatrove's"

demo: $(VENV)/core
	@$(BIN)/python examples/demo.py

demo-llm: $(VENV)/llamacpp
	@$(BIN)/python examples/demo.py --llm

test: $(VENV)/test
	$(BIN)/python -m pytest -m "not engine" -n $(JOBS) --dist loadfile

test-engines: $(VENV)/test $(VENV)/ray $(VENV)/llamacpp $(VENV)/engines/vllm.made $(VENV)/engines/sglang.made $(VENV)/engines/router.made $(VENV)/engines/ray.made
	$(BIN)/python -m pytest -m engine -n $(JOBS) --dist loadfile

lint: $(VENV)/test $(VENV)/lint
	$(BIN)/ruff check
	$(BIN)/mypy -p lifecycle -p backends -p tests -p benchmarks -p examples
	$(BIN)/python -m lifecycle.diagram --check diagrams
	$(BIN)/python -m lifecycle.reference --check docs/settings.md
	$(BIN)/python -m tests.faults.page --check docs/faults.md
	$(BIN)/shellcheck examples/slurm/*.sh

simulate: $(VENV)/test
ifdef SEED
	$(BIN)/python -m tests.simulation.whole --seed $(SEED)
else ifdef SECONDS
	$(BIN)/python -m tests.simulation.whole --seconds $(SECONDS)
else
	STOKER_TEST_TIMES=$(TIMES) $(BIN)/python -m pytest tests/simulation/test_scripts.py tests/properties/test_server_machine.py
endif

soak: $(VENV)/test
	$(BIN)/python -m benchmarks.soak --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED))

fuzz: $(VENV)/test
	$(BIN)/python -m tests.fuzz.longer --seconds $(or $(SECONDS),60)

diagrams: $(VENV)/core
	$(BIN)/python -m lifecycle.diagram --write diagrams

docs: $(VENV)/core
	$(BIN)/python -m lifecycle.reference docs/settings.md
	$(BIN)/python -m tests.faults.page --write docs/faults.md

site: $(VENV)/docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --builder html docs docs/_build

package: $(VENV)/docs
	.ci/package $(BIN)/python

bench: $(VENV)/test $(VENV)/llamacpp $(VENV)/bench $(VENV)/engines/vllm.made
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) demo

$(VENV)/core: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Stoker needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}: make PYTHON=/path/to/python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Stoker into $(VENV)"
	@$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/test $(VENV)/lint $(VENV)/docs $(VENV)/ray: $(VENV)/%: $(VENV)/core
	$(PIP) install --quiet --editable '.[$*]'
	@touch $@

$(VENV)/llamacpp: $(VENV)/core
	@command -v cmake >/dev/null && command -v c++ >/dev/null || { \
	  echo "llama.cpp is compiled here and needs cmake and a C++ compiler: apt-get install cmake g++"; exit 1; }
	@echo "installing llama.cpp and a model of 253 MB; the first time llama.cpp is compiled, about 10 minutes on 2 cores"
	$(PIP) install --editable '.[llamacpp]'
	@touch $@

# Engines live in environments of their own, as they do for most people: each wants another torch.
$(VENV)/engines/%.made: tests/engines/install_%.py | $(VENV)/core
	$(PYTHON) tests/engines/install_$*.py $(VENV)/engines/$*
	@touch $@

# What the figures are compared with lives in a folder of its own: Stoker does not depend on it.
$(VENV)/bench: $(VENV)/core
	$(PYTHON) -m venv $(VENV)/peer
	$(VENV)/peer/bin/pip --disable-pip-version-check install --quiet 'datatrove==0.10.1' aiosqlite httpx orjson
	@command -v nginx >/dev/null || test -x /usr/sbin/nginx || { \
	  echo "the requests are measured against nginx: apt-get install nginx-light"; exit 1; }
	@touch $@
