"""What SGLang's log says: phases of a start, known causes of a failure, and lines that carry users' texts. All data.

Texts of SGLang 0.5.23, compared with the sources of 0.5.15 and 0.5.20. A line is `[2026-12-02 06:44:47 TP0] words`,
with no level; tracebacks and progress bars are bare. Texts of GPU memory, graph capture and DeepGEMM come from the
sources: they cannot be made to appear without a GPU. A scheduler that fails in its start ends the whole process group
with SIGKILL (exit code -9): that is SGLang's own hand, not the kernel's, and the cause is the exception before.
"""

from __future__ import annotations

import re

from backends import progress
from lifecycle.adapter import Phase
from lifecycle.diagnosis import Rule, Verdict

PHASES: tuple[tuple[str, str], ...] = (
    ("configuring", r"server_args=|ServerArgs\("),
    ("joining", r"Init (?:parallel|torch distributed) begin"),
    ("loading", r"Load weight begin"),
    ("loading", r"(?:Loading [\w ]+|Multi-thread loading [\w ]*)(?:shards|InstantTensor|loader|Streamer): +\d+%"),
    ("loaded", r"Load weight end"),
    ("allocating the KV cache", r"KV Cache is allocated|Memory pool end"),
    ("compiling", r"Entering DeepGEMM JIT|Try DeepGEMM JIT Compiling|DeepGEMM warmup(?! done)"),
    ("compiling", r"Compiling num tokens|Running FlashInfer autotune"),
    ("capturing graphs", r"(?i:Capture (?:target|draft|cuda|cpu)\b.* begin)|Capture cpu graph bs"),
    ("capturing graphs", r"Capturing (?:batches|num tokens|prefill shape) \(.*\): +\d+%"),
    ("captured graphs", r"(?i:Capture (?:target|draft|cuda)\b.* end\b)"),
    ("starting HTTP", r"Engine startup timings|Waiting for application startup|max_total_num_tokens=\d"),
    ("warming up", r"Uvicorn running on "),
    ("listening", r"The server is fired up and ready to roll"),
)
"""What a start does, in its order, and the words that say so. It listens from `warming up` on, and lists its model;
`/ready` and `/health` answer 503 until `listening`."""
_PHASES = tuple((name, re.compile(pattern)) for name, pattern in PHASES)


def phase(line: str) -> Phase | None:
    """What a log line says about a start, or None."""
    for name, pattern in _PHASES:
        if pattern.search(line):
            return progress.counted(name, line)
    return progress.download(line)


QUOTES: tuple[str, ...] = (
    r"\bReceive: obj=",
    r"\bFinish: obj=",
    r'"(?:obj|text|input_ids|messages|prompt)": ',
    r"GenerateReqInput\(|EmbeddingReqInput\(|SamplingParams\(",
    r"Dumping? .*requests? ",
    r"Ignore import error when loading ",
)
"""Lines that carry prompts or answers of users (`--log-requests`, and what the engine dumps when it dies), and those
that name what is no cause: models that cannot be imported here, and that this server does not need."""

START, RUN = "start", "run"
KILLED = "a process of the engine was killed from outside: by the kernel for its memory (dmesg tells), or by somebody"
OTHER_CPU = "this build of SGLang uses instructions that this CPU lacks: install another build, or use another machine"
RULES: tuple[Rule, ...] = (
    Rule("no-kv-cache", r"Not enough memory\. Please try to increase --mem-fraction-static|"
         r"weights leave no GPU memory for the KV cache|leaves no room for the full KV pool", Verdict.HOPELESS,
         "the weights leave no room for the KV cache: raise mem_fraction_static, use more GPUs (tensor_parallel), or a "
         "smaller model", START),
    Rule("context-too-long", r"context_length \(\d+\) is greater than the derived context_length", Verdict.HOPELESS,
         "lower context_length to what the model was made for; the line names it", START),
    Rule("memory-held", r"memory capacity is unbalanced", Verdict.UNKNOWN,
         "another process holds memory of one of the GPUs: end it (nvidia-smi names it), wait for it, or use others",
         START),
    Rule("out-of-memory", r"(?:Prefill|Decode) out of memory|alloc_req_slots runs out of memory|"
         r"Capture .*graph failed: .*out of memory|Triton Error \[CUDA\]: out of memory", Verdict.UNKNOWN,
         "ask for less memory: lower mem_fraction_static (for graphs and activations), max_running_requests or "
         "context_length, or use more GPUs (tensor_parallel)"),
    Rule("graph-capture", r"Capture (?:prefill )?(?:cuda|CUDA) graph failed", Verdict.UNKNOWN,
         "lower mem_fraction_static, or in engine_args the largest batch of a graph (cuda-graph-max-bs-decode)", START),
    Rule("unknown-architecture", r"Cannot find model module|Model architectures .*failed to be inspected",
         Verdict.HOPELESS, "this SGLang does not know the model: use a newer one, or another engine or model", START),
    Rule("bad-config", r"Unrecognized model in |does not appear to have a file named config", Verdict.HOPELESS,
         "the model's folder has no config.json that says what it is: check its path, and fetch it again", START),
    Rule("broken-weights", r"SafetensorError|Error while deserializing header|PytorchStreamReader failed|"
         r"HeaderTooLarge|invalid load key|are not initialized from checkpoint", Verdict.HOPELESS,
         "a weight file is torn, or none (Git LFS leaves small text files in their place), or of another model: fetch "
         "it again", START),
    Rule("missing-tokenizer", r"Can't load tokenizer for|Couldn't instantiate the backend tokenizer|"
         r"Tokenizer class \S+ does not exist", Verdict.HOPELESS,
         "the model has no tokenizer that can be loaded: name one in engine_args (tokenizer-path)", START),
    Rule("bad-quantization", r"Unknown quantization method|Quantization method specified in the model config|"
         r"is not supported for quantization|is not supported for the current GPU", Verdict.HOPELESS,
         "quantization does not fit the model's weights or this GPU: leave it out", START),
    Rule("bad-parallel-sizes", r"number of ranks \(dp_size|must be divisible by|is not divisible by", Verdict.HOPELESS,
         "tensor_parallel, pipeline_parallel and data_parallel fit neither the model nor this machine: the line says "
         "which", START),
    Rule("port-taken", r"\w+_port at \d+ is not available|\w+_port is used by a process already", Verdict.TRANSIENT,
         "another process took a port of this server; it is started again on other ports", START),
    Rule("illegal-instruction", r"scheduler died during initialization \(exit code: -4\)", Verdict.HOPELESS, OTHER_CPU,
         START),
    Rule("illegal-instruction", r"Subprocess \S+ \(pid=\d+\) crashed with exit code -4\b", Verdict.HOPELESS, OTHER_CPU,
         RUN),
    Rule("engine-stuck", r"\w+(?: \w+)? watchdog timeout \(self\.watchdog_timeout", Verdict.UNKNOWN,
         "one step of the scheduler took longer than SGLang's own watchdog allows: look above for what it did; "
         "watchdog-timeout in engine_args sets the limit", RUN),
    Rule("engine-killed", r"scheduler died during initialization \(exit code: -9\)", Verdict.UNKNOWN, KILLED, START),
    Rule("engine-killed", r"Subprocess \S+ \(pid=\d+\) crashed with exit code -9\b", Verdict.UNKNOWN, KILLED, RUN),
    Rule("engine-died", r"Subprocess \S+ \(pid=\d+\) crashed with exit code", Verdict.UNKNOWN,
         "a process of the engine has died: what it said before is above", RUN),
)  # fmt: skip
"""Causes that SGLang names in its own words, the more special ones first. Its wrappers (`Scheduler hit an exception`,
`Received sigquit from a child process`, ...) are none: the cause is the exception before."""
