"""The whole of Stoker in one process, on one seed: chart, driver, server, group, fleet, compile lock and generate job
are the real ones; adapters, clock, threads, network, file system, processes and the order of tasks are simulated.

- `draw`: what a seed means: which faults, how often, to how many servers;
- `machine`, `locks`, `scheduler`: what is simulated, beside `lifecycle.testing` and `tests.batch.simulated_disk`;
- `groups`: groups of hosts as replicas of a fleet;
- `job`: what a job works on; `fate`: what goes wrong as time goes by; `journals`: what must hold of each;
- `world`: a run, and what must hold after each step and at the end;
- `lives`: the same for one server's life, as many as a second has room for;
- `__main__`: the command, which replays a seed or tries new ones for some time.
"""
