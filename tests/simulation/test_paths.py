"""Every path that the chart allows, through the real driver and the real activities, on virtual time."""

from __future__ import annotations

import pytest

from lifecycle.paths import Path, paths
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import Facts, Start
from lifecycle.testing import run_virtual
from tests.simulation.director import Director, model
from tests.simulation.world import World

FOUND = paths(model())
NUMBERED = list(enumerate(FOUND.all))


def test_the_real_world_takes_every_row_of_the_table() -> None:
    assert FOUND.never == ()
    assert {row for path in FOUND.all for row in path.rows} == set(SERVER.rows)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(("number", "path"), NUMBERED, ids=[str(path) for path in FOUND.all])
def test_a_path_is_taken_and_nothing_is_left_behind(number: int, path: Path[Facts], backend: str) -> None:
    async def body() -> World:
        director = Director(path)
        world = await director.run()
        world.check_end()
        assert await world.server.driver.send(Start()) == "late"
        return world

    world = run_virtual(body, backend=backend, seed=number, limit=1e5)
    assert world.server.state == path.rows[-1].target
