"""Facts in, rows out. Pure: nothing here looks at the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from lifecycle.findings import not_enough_gpus
from lifecycle.preflight import Check, blocker, ok, warning
from lifecycle.resources.gpus import Gpu, holders, in_words

GIB = 1024**3
SHARED_MEMORY = GIB // 2
"""Bytes of /dev/shm that one server may want: vLLM 0.32 makes segments of 168 and 252 MiB, and one more for each rank
beyond the first (seen on its build for CPUs)."""
SPARE_FILES = 256
"""Open files that a server needs besides one for each request at once: libraries, weights, pipes."""
FEW_FILES = 4096
"""Open files below which a job of usual width (a thousand requests at once and more) comes to its limit."""
ROOM = 1.2
"""How much memory a GPU needs for each byte of weights, at the least: activations, graphs, and some cache."""
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
GPU_EXTRA = "pip install nvidia-ml-py into Stoker's environment to have them seen, if there are any"


def gpus_row(found: Sequence[Gpu], needed: int, *, uses_gpus: bool, visible: str | None, bindings: bool) -> Check:
    """GPUs against tensor_parallel × pipeline_parallel × data_parallel.

    Args:
        found: those that the server would see.
        uses_gpus: the engine spreads a model over GPUs (it has parallel sizes).
        visible: CUDA_VISIBLE_DEVICES of the server; None if it is not set.
        bindings: NVML could be loaded at all.
    """
    name = "gpus"
    hidden = "" if visible is None else f" under CUDA_VISIBLE_DEVICES={visible!r}"
    if not found:
        if not uses_gpus:
            return ok(name, f"none is seen{hidden}; this backend asks for none")
        advice = "fine for an engine that was built for CPUs"
        return warning(name, f"none is seen{hidden}", advice if bindings else f"{advice}; {GPU_EXTRA}")
    kinds = {gpu.name for gpu in found}
    seen = f"{len(found)} seen{hidden}: " + ", ".join(
        f"{sum(gpu.name == kind for gpu in found)} × {kind}" for kind in sorted(kinds)
    )
    short = not_enough_gpus(needed, len(found)) if uses_gpus else None
    if short is not None:
        return blocker(name, f"{short}{hidden}", "lower one of the sizes, or ask for more GPUs")
    if uses_gpus and len(kinds) > 1 and needed > 1:
        return warning(name, seen, "GPUs of different types: the smallest decides; choose with CUDA_VISIBLE_DEVICES")
    return ok(name, f"{seen}; {needed} needed" if uses_gpus else seen)


def gpu_memory_row(found: Sequence[Gpu], weights: int | None, sharing: int, needed: int) -> Check | None:
    """The GPUs' memory against the weights; None without GPUs.

    Args:
        weights: bytes; None if they are not known.
        sharing: over how many GPUs one copy is spread: tensor_parallel × pipeline_parallel.
        needed: GPUs that will be used: the first so many.
    """
    name, used = "gpu memory", found[:needed]
    if not used:
        return None
    least, total = min(gpu.free for gpu in used), min(gpu.total for gpu in used)
    others = ", ".join(holders(used))
    state = f"{in_words(least)} of {in_words(total)} free" + (" on the fullest" if len(used) > 1 else "")
    if weights is not None:
        share = weights / sharing
        state += f"; weights take {in_words(round(share))} on each"
        if share > total:
            return blocker(name, state, "raise tensor_parallel, or take a smaller or a quantised model")
        if share > least:
            advice = f"end what holds it: {others}" if others else "something holds it that the driver does not name"
            return blocker(name, state, advice)
        if share * ROOM > least:
            return warning(name, state, "little is left for the cache: raise tensor_parallel, or shorten the context")
    if others:
        return warning(name, state, f"others use these GPUs: {others}")
    return ok(name, state)


def memory_row(available: int, swap: int, limit: int | None, weights: int | None, *, on_gpu: bool) -> Check:
    """The machine's memory and the job's share of it against the weights. All in bytes.

    Args:
        available: what could be used now without swapping.
        swap: free swap space.
        limit: of the control group; None if it has none.
        on_gpu: the weights end up in GPUs, so that the machine's memory holds parts of them only.
    """
    name = "memory"
    room = available if limit is None else min(available, limit)
    state = f"{in_words(available)} available, " + (f"{in_words(swap)} of swap free" if swap else "no swap")
    state += f", control group limited to {in_words(limit)}" if limit is not None else ""
    if weights is None or weights <= room:
        return ok(name, state)
    found = f"{state}; the weights are {in_words(weights)}"
    if on_gpu:
        return warning(name, found, "loading may be slow or end in the kernel's OOM killer: ask the job for more")
    return blocker(name, found, "give the job more memory, or take a smaller model")


def disk_row(free: int, to_fetch: int, where: str) -> Check:
    """Free bytes against what must be downloaded there."""
    name = "disk"
    state = f"{in_words(free)} free in {where}"
    if to_fetch > free:
        return blocker(
            name, f"{state}; {in_words(to_fetch)} must be downloaded", "free some, or set HF_HOME to a larger disk"
        )
    if to_fetch:
        return ok(name, f"{state}; {in_words(to_fetch)} will be downloaded")
    return ok(name, state) if free > GIB else warning(name, state, "logs and compile caches need some")


def shared_memory_row(free: int | None, ranks: int) -> Check:
    """/dev/shm against what the processes of a server share. `free`: bytes, None if there is none."""
    name = "/dev/shm"
    if free is None:
        return warning(name, "there is none", "processes of engines share memory there: mount a tmpfs")
    if free < SHARED_MEMORY * max(1, ranks):
        return warning(
            name, f"{in_words(free)} free", "remove what is left in it, or start the container with --shm-size=16g"
        )
    return ok(name, f"{in_words(free)} free")


def files_row(soft: int, hard: int) -> Check:
    """Limits on open files, which are what connections need. -1 stands for none."""
    name = "open files"
    if soft < 0 or soft >= FEW_FILES:
        room = "no limit" if soft < 0 else f"{soft}: room for about {soft - SPARE_FILES} requests at once"
        return ok(name, room)
    higher = "" if hard < 0 else f" (at most {hard})"
    return warning(
        name, f"{soft}: room for about {max(0, soft - SPARE_FILES)} requests at once", f"ulimit -n 65536{higher}"
    )


def proxies_row(environ: Mapping[str, str | None], address: str, *, local: bool) -> Check:
    """Proxy variables. Stoker asks servers directly, whatever they say; an engine that asks itself may not.

    Args:
        environ: of the server.
        address: that it listens on.
        local: Stoker starts it.
    """
    name = "proxies"
    given = {key: _value(environ, key) for key in PROXIES}
    named = {key: without_login(value) for key, value in given.items() if value}
    if not named:
        return ok(name, "none are set")
    said = ", ".join(f"{key}={value}" for key, value in named.items())
    exempt = [word.strip() for word in _value(environ, "NO_PROXY").split(",")]
    if local and not {"*", address}.intersection(exempt):
        return warning(
            name,
            f"{said}; NO_PROXY does not name {address}",
            f"Stoker asks the server directly, but an engine that asks itself (SGLang's warm-up) goes through the "
            f"proxy: NO_PROXY={','.join(filter(None, [*exempt, address]))}",
        )
    return ok(name, f"{said}; probes and requests do not go through them")


def _value(environ: Mapping[str, str | None], key: str) -> str:
    return environ.get(key.lower()) or environ.get(key) or ""


def without_login(url: str) -> str:
    """A URL without user and password.

    >>> without_login("http://me:secret@proxy:3128")
    'http://***@proxy:3128'
    """
    scheme, slashes, rest = url.rpartition("://")
    login, at, host = rest.rpartition("@")
    return f"{scheme}{slashes}***@{host}" if at and login else url


def exposure_row(host: str, *, keyed: bool) -> Check:
    """Who can reach the server."""
    if ip_address(host).is_loopback:
        return ok("exposure", f"{host}: this machine only")
    if keyed:
        return ok("exposure", f"{host}: other machines too, with a key")
    return warning("exposure", f"{host}: other machines too, without a key", "name a key with api_key_env")


def tmpdir_row(usual: str, chosen: str, longest: int) -> Check:
    """The folder for a server's private temporary files.

    Args:
        usual: TMPDIR, or /tmp.
        chosen: path of such a folder that would be made.
        longest: bytes that its path may have.
    """
    name, (parent, _, own) = "temporary folder", chosen.rpartition("/")
    if usual.rstrip("/") == parent:
        return ok(name, f"{parent}, short enough for sockets")
    return warning(
        name,
        f"TMPDIR={usual} is too long for sockets in it, or cannot be written to: {parent} is used instead",
        f"if that matters, set TMPDIR to a path of at most {longest - len(own) - 1} bytes",
    )


def leftovers_row(labels: Mapping[str, int], files: int = 0) -> Check:
    """What earlier runs have left behind: processes by server, and files of shared memory."""
    name = "leftovers"
    if not labels:
        return ok(name, "nothing of earlier runs")
    said = ", ".join(f"{label} ({count} processes)" for label, count in labels.items())
    said += f"; {files} files in /dev/shm" if files else ""
    return warning(name, f"of earlier runs: {said}", "stoker reap --yes; a start ends them, too")
