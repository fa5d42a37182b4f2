"""A process that takes the lock of an output, as another host would on a network file system, for tests that kill it.

    python -m tests.batch.lock_holder FOLDER HOST DURATION HEARTBEAT

It says "held", or why it is refused, and holds the lock until its input ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lifecycle.batch.store.lock import take
from lifecycle.errors import OutputError
from lifecycle.resources.locks import Lease
from tests.builder_process import change

NFS = "server:/export / nfs4 rw,local_lock=all 0 0\n"

if __name__ == "__main__":
    folder, host, duration, heartbeat = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
    change({"host": host, "mounts": NFS, "flock": "succeeds", "user": 0})
    try:
        lock = take(folder, folder / "out.jsonl", Lease(duration, heartbeat))
    except OutputError as error:
        print(error, flush=True)
    else:
        print("held", flush=True)
        sys.stdin.read()
        lock.free()
