"""A process that fills an output, for tests that kill it: each record's number goes to standard output, eight bytes,
when `append` has returned.

    python -m tests.batch.store_writer OUT FORMAT RECORDS SEED
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from random import Random

from lifecycle.batch.store import open_store

PART_SIZE = 40


def check_of(number: int) -> int:
    return number * 2654435761 % 2**32


def line_of(number: int) -> bytes:
    return b'{"id":%d,"text":"%s"}' % (number, b"x" * (number * 37 % 3000))


def fails(number: int) -> bool:
    return number % 10 == 3


def main(out: str, format: str, records: int, seed: int) -> None:
    random = Random(seed)
    numbers = list(range(records))
    random.shuffle(numbers)
    with open_store(out, format=format, part_size=PART_SIZE) as store:
        os.write(1, struct.pack("<q", -1))
        over = threading.Event()

        def sync() -> None:
            while not over.is_set():
                store.sync()

        syncing = threading.Thread(target=sync)
        syncing.start()
        try:
            if store.failed and random.random() < 0.3:
                over.set()
                syncing.join()
                store.drop_errors()
            for number in numbers:
                if not store.is_done(number, check_of(number)):
                    store.append(number, check_of(number), line_of(number), error=fails(number))
                    os.write(1, struct.pack("<q", number))
        finally:
            over.set()
            syncing.join()
        store.finish()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
