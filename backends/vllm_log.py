"""What vLLM's log says: phases of a start, known causes of a failure, and lines that carry users' texts. All data.

Texts of vLLM 0.32.0. A line is `(Worker_TP0 pid=7) INFO 12-02 06:42:52
[base_loader.py:82] words`, or `INFO 12-02 ...` without the first part; tracebacks, uvicorn and progress bars are bare.
Those of GPUs are from the sources: they cannot be made to appear without one.
"""

from __future__ import annotations

import re

from backends import progress
from lifecycle.adapter import Phase
from lifecycle.diagnosis import Rule, Verdict

PHASES: tuple[tuple[str, str], ...] = (
    ("booting", r"non-default args: "),
    ("configuring", r"Resolved architecture: "),
    ("starting the engine", r"Initializing a V\d LLM engine "),
    ("joining", r"distributed_init_method="),
    ("waiting for GPUs of the Ray cluster", r"Waiting for creating a placement group"),
    ("downloaded", r"Time spent downloading weights for "),
    ("loading", r"Starting to load model |Loading model from scratch|Loading [\w -]*shards: +\d+% Completed"),
    ("loaded", r"Loading weights took |Model loading took "),
    ("compiling", r"Starting torch\.compile|Warming up model for the compilation|Compiling a graph for |"
     r"Compiling model again|Start compiling function|Dynamo bytecode transform time"),
    ("compiled", r"saved AOT compiled function to |torch\.compile (?:took|and initial)"),
    ("taking compiled code from the cache", r"Directly load"),
    ("profiling", r"Initial profiling/warmup run took "),
    ("allocating the KV cache", r"Available KV cache memory: |KV cache size: "),
    ("capturing graphs", r"Capturing CUDA graphs?\b"),
    ("captured graphs", r"Graph capturing finished in "),
    ("warmed up", r"init engine \(profile, create kv cache, warmup model\) took "),
    ("starting HTTP", r"Starting vLLM (?:API )?server |Available routes are:"),
    ("listening", r"Application startup complete\.|Uvicorn running on "),
)  # fmt: skip
"""What a start does, in its order, and the words that say so. `/health` answers from `listening` on. Where a progress
bar counts, the phase does too: weight files, graphs."""
_PHASES = tuple((name, re.compile(pattern)) for name, pattern in PHASES)


def phase(line: str) -> Phase | None:
    """What a log line says about a start, or None."""
    for name, pattern in _PHASES:
        if pattern.search(line):
            return progress.counted(name, line)
    return progress.download(line)


QUOTES: tuple[str, ...] = (
    r"Received request \S+: ",
    r"Request \S+ (?:details: prompt|JSON body): ",
    r"Generated response ",
    r"Dumping (?:input data|scheduler output) for ",
    r"SamplingParams\(",
)
"""Lines that carry prompts, answers or stop words of users: `--enable-log-requests`, `--enable-log-outputs`, and what
the engine dumps when it dies."""

START = "start"
RULES: tuple[Rule, ...] = (
    Rule("memory-held", r"Free memory on device .* on startup is less than |exceed the desired GPU memory utilization|"
         r"Error in memory profiling\.", Verdict.UNKNOWN,
         "another process holds GPU memory, or has just let it go: end it (nvidia-smi names it), wait for it, or lower "
         "gpu_memory_utilization", START),
    Rule("no-kv-cache", r"No available memory for the cache blocks|Cannot auto-fit max_model_len", Verdict.HOPELESS,
         "the weights leave no room for the KV cache: raise gpu_memory_utilization or kv_cache_memory_bytes "
         "(on a CPU VLLM_CPU_KVCACHE_SPACE in env), lower max_num_seqs, or use more GPUs (tensor_parallel)", START),
    Rule("no-kv-cache", r"Available memory on node .* is less than requested memory for kv", Verdict.HOPELESS,
         "the machine has less free memory than the KV cache is to have: lower kv_cache_memory_bytes or "
         "VLLM_CPU_KVCACHE_SPACE", START),
    Rule("context-exceeds-cache", r"To serve at least one request with the model's max seq len", Verdict.HOPELESS,
         "one request of this context_length does not fit into the KV cache: the line names the length that does; "
         "lower context_length, or raise gpu_memory_utilization or kv_cache_memory_bytes", START),
    Rule("context-too-long", r"User-specified max_model_len .* is greater than the derived max_model_len",
         Verdict.HOPELESS, "lower context_length to what the model was made for; the line names it", START),
    Rule("not-enough-gpus", r"World size \(\d+\) is larger than the number of available GPUs|"
         r"local_rank \d+ is out of bounds|Not enough allowed NUMA nodes", Verdict.HOPELESS,
         "tensor_parallel × pipeline_parallel × data_parallel is more than the devices that this server may use: lower "
         "one of them, or let it see more (CUDA_VISIBLE_DEVICES)", START),
    Rule("ray-placement", r"Waiting for creating a placement group|Cannot provide a placement group|"
         r"is not included in a placement group", Verdict.UNKNOWN,
         "the Ray cluster has too few free GPUs, or knows this host by another address than node_address: the line "
         "says what is asked for, `ray status` what there is", START, general=True),
    Rule("bad-parallel-sizes", r"must be divisible by tensor parallel size", Verdict.HOPELESS,
         "choose a tensor_parallel that divides the model's attention heads; the line names them", START),
    Rule("out-of-memory", r"Failed to load model - not enough GPU memory|"
         r"CUDA out of memory occurred when warming up", Verdict.UNKNOWN,
         "lower gpu_memory_utilization, context_length or max_num_seqs, or use more GPUs (tensor_parallel)", START),
    Rule("unknown-architecture", r"Model architectures? .* (?:are|is) not supported|failed to be inspected",
         Verdict.HOPELESS, "this version of vLLM does not know the model: use a newer one, or another engine or model",
         START),
    Rule("missing-model", r"Cannot find any model weights with|Invalid repository ID or local directory specified",
         Verdict.HOPELESS, "check the model's name or path: a model folder has config.json and weight files", START),
    Rule("broken-weights", r"SafetensorError|Error while deserializing header|PytorchStreamReader failed|"
         r"There is no module or parameter named|weights were not initialized from checkpoint", Verdict.HOPELESS,
         "a weight file is torn, is none, or belongs to another model than config.json: fetch the model again (Git LFS "
         "leaves small text files in the place of weights)", START),
    Rule("missing-tokenizer", r"Can't load tokenizer for|Couldn't instantiate the backend tokenizer|"
         r"Tokenizer class \S+ does not exist", Verdict.HOPELESS,
         "the model has no tokenizer that can be loaded: name one in engine_args (tokenizer)", START),
    Rule("bad-quantization", r"Unknown quantization method|Cannot find the config file for |"
         r"Quantization method specified in the model config", Verdict.HOPELESS,
         "quantization does not fit the model's weights: leave it out", START),
    Rule("driver-mismatch", r"Failed to infer device type", Verdict.HOPELESS,
         "vLLM finds no device that it was built for: look at nvidia-smi, and install the build that fits", START),
    Rule("illegal-instruction", r"Worker proc \S+ died unexpectedly \(exit code: -4\)|"
         r"RuntimeError: Engine core initialization failed\..*'\w+': -4\b", Verdict.HOPELESS,
         "this build of vLLM uses instructions that this CPU lacks: install another build"),
    Rule("engine-killed", r"Worker proc \S+ died unexpectedly \(exit code: -9\)|"
         r"RuntimeError: Engine core initialization failed\..*'\w+': -9\b", Verdict.UNKNOWN,
         "a process of the engine was killed from outside: by the kernel for want of memory (dmesg tells), or by "
         "somebody"),
    Rule("engine-died", r"EngineCore encountered an issue\.|Worker proc \S+ died unexpectedly|"
         r"Engine core process \S+ died unexpectedly", Verdict.UNKNOWN,
         "a process of the engine has ended without a word: if dmesg shows nothing, it was killed by somebody",
         "run", general=True),
    Rule("engine-timeout", r"(?:TimeoutError: )?Timed out waiting for engine core processes to start", Verdict.UNKNOWN,
         "vLLM's own limit for a start was over: raise VLLM_ENGINE_READY_TIMEOUT_S in env", START, general=True),
    Rule("compile-cache", r"(?:FileNotFoundError|OSError|EOFError|JSONDecodeError)\b.*"
         r"(?:torch_compile_cache|inductor_cache|torchinductor|/inductor/|/triton/|deep_gemm|flashinfer)",
         Verdict.TRANSIENT, "the compile cache is broken; it is put away and built again", START),
)  # fmt: skip
"""Causes of failures that vLLM names itself; those of the libraries under it are in `lifecycle.rules`. Its wrappers
(`Engine core initialization failed. See root cause above`, ...) are none of them: the cause is the exception before."""
