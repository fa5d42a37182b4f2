"""Disks that are full, and folders that cannot be written to."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from lifecycle.errors import ConfigError
from lifecycle.journal import Kind
from tests.served import HELLO, fake, given_up, healthy, starts, tell

pytestmark = pytest.mark.anyio
FULL = "OSError: [Errno 28] No space left on device: '/home/u/.cache/huggingface/hub/tmp1'"
SHARED = "RuntimeError: unable to allocate shared memory(shm) for file </torch_7_1>: No space left on device (28)"


@pytest.mark.parametrize(
    ("line", "cause", "tries"), [(FULL, "disk-full", 1), (SHARED, "shared-memory", 2)], ids=["disk", "shared memory"]
)
async def test_a_start_that_finds_a_full_disk_says_which_and_what_to_do(
    tmp_path: Path, line: str, cause: str, tries: int
) -> None:
    server = fake(tmp_path, {"exit_before_bind": True, "traceback": line}, max_attempts=5)
    error = await given_up(server)
    assert error.diagnosis.cause == cause
    assert error.diagnosis.evidence == line
    assert ("HF_HOME" in error.diagnosis.advice) or ("/dev/shm" in error.diagnosis.advice)
    assert len(starts(server)) == tries


async def test_a_server_that_dies_of_a_full_disk_while_it_serves_is_started_again(tmp_path: Path) -> None:
    """Somebody may have made room meanwhile, and the start will tell if not."""
    async with fake(tmp_path) as server:
        await healthy(server)
        seen = server.journal.seq
        await tell(server, "/_say", {"text": f"Traceback (most recent call last):\n  File \"x\"\n{FULL}"})
        with suppress(OSError):
            await tell(server, "/_exit", {"code": 1})
        await server.driver.wait("Healthy", after=seen)
        await server.chat(HELLO)
    exited = next(r for r in server.journal.records if r.event == "Exited" and r.kind is Kind.TRANSITION)
    assert exited.detail["diagnosis"]["cause"] == "disk-full"


def test_a_state_folder_that_cannot_be_made_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(ConfigError, match="set state_dir to another folder"):
        fake(tmp_path)
    (tmp_path / "state").unlink()
