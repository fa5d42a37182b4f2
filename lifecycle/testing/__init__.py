"""A kit for tests: of your adapter, of code that uses a server, of your own chart. Needs no pytest.

    def test_my_pipeline_survives_a_crash() -> None:
        async def body() -> None:
            host = SimulatedHost([Life(exits=30.0), Life()])
            async with Server(ServerConfig("simulated"), adapter=SimulatedAdapter(), host=host) as server:
                await server.healthy()
                ...
            assert host.held() == ()

        run_virtual(body, backend="trio", seed=3)

- `run_virtual`: an event loop of asyncio or trio on virtual time, in an order that a seed decides;
- `SimulatedHost`, `Life`, `Turn`: a machine without processes, what its servers do, and faults on demand; its ledger
  says who held what and when, and what should not have happened;
- `SimulatedAdapter`: a backend for it;
- `server_model`: the server's chart as a model for `lifecycle.explore`.

Modules that are imported by name, since each needs something more:

- `lifecycle.testing.conformance` (pytest): `AdapterConformance`, what every backend must do;
- `lifecycle.testing.fake`: `fake_server`, a real process that misbehaves on request; a fixture of the same name;
- `lifecycle.testing.strategies` (hypothesis): configurations, lives, events and faults;
- `lifecycle.testing.machine` (hypothesis): `ServerMachine`, the chart as a random machine to extend;
- `lifecycle.testing.invariants`: what must hold of a server's life after each step.
"""

from lifecycle.testing.adapter import SimulatedAdapter
from lifecycle.testing.clock import run_virtual
from lifecycle.testing.host import SimulatedHost, Turn
from lifecycle.testing.ledger import Hold, Ledger
from lifecycle.testing.process import Life, SimulatedProcess
from lifecycle.testing.server_model import server_model

__all__ = [
    "Hold",
    "Ledger",
    "Life",
    "SimulatedAdapter",
    "SimulatedHost",
    "SimulatedProcess",
    "Turn",
    "run_virtual",
    "server_model",
]
