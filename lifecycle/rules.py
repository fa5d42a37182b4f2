"""Known causes of failed starts and runs, as data: what a log line shows, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Whether another attempt can help."""

    HOPELESS = "hopeless"
    """The same will happen again: an unknown flag, a missing model, bad credentials."""
    TRANSIENT = "transient"
    """The cause lies outside and may pass: a hub that is down, memory held by a process that is ending."""
    UNKNOWN = "unknown"
    """Worth another try, but not worth a third if the second fails with the same words."""


@dataclass(frozen=True)
class Rule:
    """One known cause, and how a log shows it.

    A rule counts only when the process has exited or a probe has failed, never by itself. How `pattern` is tried
    depends on what the server was doing, since a server that serves may print what its users wrote:

    - before it was ready the pattern is searched anywhere in a line;
    - afterwards it must fit at the beginning of an error's own text, and only lines that are the engine's own errors
      are tried (`lifecycle.evidence`).
    """

    cause: str
    pattern: str
    verdict: Verdict
    advice: str
    phase: str = ""
    """"start": only before the server was ready; "run": only afterwards, and then the pattern is known for the engine's
    own words where its log tells no levels; "": both."""
    general: bool = False
    """It names a consequence as often as a cause ("connection reset", after a peer has died of something else): it
    counts only where no other rule does, wherever its line is."""


HOPELESS, TRANSIENT, UNKNOWN = Verdict.HOPELESS, Verdict.TRANSIENT, Verdict.UNKNOWN

COMMON_RULES: tuple[Rule, ...] = (
    Rule(
        "unknown-flag",
        r"unrecognized arguments?:|unrecognized option|invalid argument:|unknown argument|no such option|"
        r"invalid choice:|error: argument ",
        HOPELESS,
        "remove or correct the flag that the line names",
        "start",
    ),
    Rule(
        "needs-trust-remote-code",
        r"contains custom code which must be executed|requires you to execute the configuration file|"
        r"Please pass the argument .trust_remote_code|consider setting .trust_remote_code=True",
        HOPELESS,
        "the model brings Python code of its own: read it, and set trust_remote_code = true if you trust it",
        "start",
    ),
    Rule(
        "unknown-architecture",
        r"does not recognize this architecture|Model architectures? .*not supported|unknown model architecture",
        HOPELESS,
        "this version of the engine does not know the model: use a newer one, or another engine or model",
        "start",
    ),
    Rule(
        "bad-credentials",
        r"GatedRepoError|Cannot access gated repo|trying to access a gated repo|Access to model .* is restricted",
        HOPELESS,
        "accept the model's terms on its hub page and set HF_TOKEN to a token that may read it",
        "start",
    ),
    Rule(
        "missing-model",
        r"outgoing traffic has been disabled|offline mode is enabled",
        HOPELESS,
        "the model is not complete on this disk and HF_HUB_OFFLINE forbids to fetch it: download it first "
        "(hf download MODEL), or unset HF_HUB_OFFLINE",
        "start",
    ),
    Rule(
        "missing-model",
        r"RepositoryNotFoundError|Repository Not Found|RevisionNotFoundError|404 Client Error|Client error '404|"
        r"is not a local folder and is not a valid model identifier|is not a valid git identifier|"
        r"Repo id must (?:be in the form|use alphanumeric chars)|failed to open GGUF file|"
        r"Cannot find any model weights|model path does not exist",
        HOPELESS,
        "check the model's name or path, and its revision; a private model also needs HF_TOKEN",
        "start",
    ),
    Rule(
        "bad-credentials",
        r"40[13] Client Error|Client error '40[13]|HfHubHTTPError: 40[13]|Invalid user token|"
        r"Invalid credentials in Authorization",
        HOPELESS,
        "the hub refuses the token, or wants one: set HF_TOKEN to a token that may read this model",
        "start",
    ),
    Rule(
        "port-taken",
        r"(?:\[Errno 98\] )?(?:Address already in use|EADDRINUSE|error while attempting to bind on address)|"
        r"couldn't bind HTTP server socket",
        TRANSIENT,
        "another process took a port of this server; it is started again on other ports",
    ),
    Rule(
        "shared-memory",
        r"unable to (?:allocate|open|mmap|write to).*(?:shared memory|</?torch_)|"
        r"Error while creating shared memory segment|insufficient shared memory|Bus error|"
        r"No space left on device:? .*/dev/shm",
        UNKNOWN,
        "/dev/shm is full or too small: remove what is left in it, or give the container more (docker: --shm-size=16g "
        "or --ipc=host; Kubernetes: an emptyDir of medium Memory)",
    ),
    Rule(
        "disk-full",
        r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]",
        HOPELESS,
        "free some disk space where the line says: the hub's cache (HF_HOME), the compile cache (cache_dir), or TMPDIR",
    ),
    Rule(
        "memory-held",
        r"is less than desired GPU memory utilization|Error in memory profiling|The memory capacity is unbalanced",
        UNKNOWN,  # our own memory is waited for before each start: what is held after a second one is held to stay
        "another process holds memory of the GPU, or a dead one's is not back yet: see `stoker check` and nvidia-smi, "
        "end it, or ask for less",
        "start",
    ),
    Rule(
        "out-of-memory",
        r"CUDA out of memory|CUDA error: out of memory|HIP out of memory|cudaErrorMemoryAllocation|"
        r"OutOfMemoryError|cudaMalloc failed: out of memory",
        UNKNOWN,
        "the GPU's memory is not enough: a shorter context_length, more tensor_parallel, a smaller or quantised model, "
        "fewer requests at once",
    ),
    Rule(
        "out-of-host-memory",
        r"can't allocate memory|DefaultCPUAllocator: can't|Cannot allocate memory|std::bad_alloc|"
        r"terminate called after throwing an instance of 'std::bad_alloc'|MemoryError\b",
        UNKNOWN,
        "the machine's memory (or ulimit -v) is not enough: a smaller model, a smaller CPU cache, fewer servers",
    ),
    Rule(
        "not-enough-gpus",
        r"is larger than the number of available GPUs|invalid device ordinal|No CUDA GPUs are available|"
        r"no CUDA-capable device is detected",
        HOPELESS,
        "the server needs as many GPUs as tensor_parallel × pipeline_parallel × data_parallel: lower one of them, or "
        "look at CUDA_VISIBLE_DEVICES and at what the job was given",
        "start",
    ),
    Rule(
        "driver-mismatch",
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient|no kernel image is available|"
        r"forward compatibility was attempted|Found no NVIDIA driver|Driver/library version mismatch|"
        r"PTX was compiled with an unsupported toolchain|unsupported PTX|CUDA-capable device\(s\) is/are busy",
        HOPELESS,
        "the driver and the engine's CUDA do not fit: compare nvidia-smi with the CUDA of the engine's torch "
        "(python -c 'import torch; print(torch.version.cuda)'), and update the driver or install the engine for an "
        "older CUDA; after an update of the driver, restart the machine",
    ),
    Rule(
        "gpu-fault",
        r"CUDA error: (?:an illegal|misaligned|unspecified launch failure|device-side assert|uncorrectable)|"
        r"uncorrectable ECC error|Uncorrectable ECC error|GPU is lost|has fallen off the bus",
        UNKNOWN,
        "a kernel or the GPU itself failed: see `dmesg | grep -i xid`; if it comes again, take the GPU out of service, "
        "or try another version of the engine",
    ),
    Rule(
        "illegal-instruction",
        r"Illegal instruction|Fatal Python error: Illegal instruction|exit(?:ed with)? code:? -4\b|SIGILL\b",
        HOPELESS,
        "the program was built for a newer CPU than this one: use a build for it, or another machine",
    ),
    Rule(
        "compile-cache",
        r"UnpicklingError|EOFError: Ran out of input|pickle data was truncated|Stale file handle|"
        r"\[Errno 116\]|bad marshal data",
        UNKNOWN,
        "a compile or kernel cache is broken: see `stoker cache list` and clear it (`stoker cache clear`); on a "
        "network disk, set cache_dir to a folder of this machine",
    ),
    Rule(
        "missing-library",
        r"ModuleNotFoundError|ImportError|cannot open shared object file|undefined symbol:|command not found|"
        r": not found$",
        HOPELESS,
        "install what the line names into the engine's own environment",
    ),
    Rule(
        "communication",
        r"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError|"
        r"Dist(?:Backend|Network|Store)Error|Watchdog caught collective operation timeout|"
        r"Gloo connectFullMesh failed|gloo/transport/|Unable to find address for: |"
        r"Unable to find interface|no socket interface found|Bootstrap : no socket",
        UNKNOWN,
        "the ranks of the server lost each other: look further up for the rank that failed first, then at the network "
        "interface (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME) and at the GPUs' links (NCCL_DEBUG=INFO, "
        "NCCL_P2P_DISABLE=1)",
        general=True,
    ),
    Rule(
        "hub-unreachable",
        r"We couldn't connect to|LocalEntryNotFoundError|Max retries exceeded|Temporary failure in name resolution|"
        r"Name or service not known|Connection (?:refused|reset|timed out)|Network is unreachable|"
        r"50[0234] Server Error|Server error '50[0234]",
        TRANSIENT,
        "the hub could not be reached. If the weights are on this disk, set HF_HUB_OFFLINE=1 in env; if they are not, "
        "look at the proxy variables and HF_ENDPOINT, or download them elsewhere first (hf download MODEL)",
        "start",
        general=True,
    ),
    Rule(
        "compile-failed",
        r"BackendCompilerFailed|InductorError|"
        r"Failed to find C compiler",
        UNKNOWN,
        "the engine could not compile its kernels: see the lines above it; a C compiler (gcc) must be on PATH; the "
        "engine may run without compiling (vLLM: enforce-eager = true in engine_args)",
        general=True,
    ),
)  # fmt: skip
"""Causes that any engine can show. Texts: argparse and CPython 3.11, huggingface_hub 1.x, transformers 5, torch 2.13,
vLLM 0.32, SGLang 0.5.23 and llama.cpp as seen in their logs (tests/excerpts); those of CUDA and NCCL as people have
reported them, since no GPU was at hand."""
