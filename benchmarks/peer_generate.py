"""datatrove's `InferenceRunner` with checkpoints against an endpoint. Run with datatrove's own interpreter; prints a
number: documents per second.

    peer_generate.py URL DOCUMENTS IN_FLIGHT FOLDER

Counted from when as many are answered as are in flight to the last answer: its start, what it still has to write to its
request cache then, and its end are left out.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
from datatrove.pipeline.writers import JsonlWriter
from loguru import logger


def main() -> None:
    url, folder = sys.argv[1], sys.argv[4]
    documents, in_flight = int(sys.argv[2]), int(sys.argv[3])
    text = os.environ["PROMPT"]
    answered: list[float] = []
    logger.remove()

    async def rollout(document: Document, generate: Callable[[dict[str, Any]], Awaitable[Any]]) -> Any:
        result = await generate({"messages": [{"role": "user", "content": document.text}], "max_tokens": 80})
        answered.append(time.perf_counter())
        return result

    def read() -> Iterator[Document]:
        for number in range(documents):
            yield Document(text, str(number))

    runner = InferenceRunner(
        rollout,
        InferenceConfig("endpoint", "bench", endpoint_url=url, max_concurrent_generations=in_flight),
        JsonlWriter(f"{folder}/out", "${rank}_chunk_${chunk_index}.jsonl", compression=None),
        checkpoints_local_dir=f"{folder}/checkpoints",
    )
    runner.run(read())
    assert len(answered) == documents
    print((documents - in_flight) / (answered[-1] - answered[in_flight - 1]))


main()
