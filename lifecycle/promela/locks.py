"""The lock of a compile cache and the leases of ports, step by step, and what must hold of them.

Each step is one call of the operating system, as `lifecycle.resources.locks`, `caches`, `compile_lock` and `ports` make
them; `tests/proof/test_lock_steps.py` stops the real code before each call and holds it against this table. A process
may be killed before any step. What the tables leave out is said at each of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from lifecycle.promela.claims import Claim
from lifecycle.promela.steps import OVER, Branch, Protocol, Step, pairs
from lifecycle.resources.caches import FILES, HOLDER, LEASE, LOCK, MARK

OPEN_LOCK, STAT_LOCK = f"open {LOCK}", f"stat {LOCK}"
READ_HOLDER, WRITE_HOLDER, REMOVE_HOLDER = f"read {HOLDER}", f"write {HOLDER}", f"remove {HOLDER}"
READ_MARK, WRITE_MARK, REMOVE_MARK = f"read {MARK}", f"write {MARK}", f"remove {MARK}"
SCAN_FILES, STAT_FILES, MAKE_FILES, MOVE_FILES = (f"{what} {FILES}" for what in ("scan", "stat", "make", "move"))
MAKE_ENTRY, STAT_ENTRY, LIST_ENTRY, MOVE_ENTRY = (f"{what} entry" for what in ("make", "stat", "list", "move"))
FLOCK, UNLOCK, BUILD, TAKE_LEASE = "flock", "unlock", "build", f"take {LEASE}"

CLOSED = ("owner[held[me]] = 0", "held[me] = 0", "mine[me] = 0", "pin[me] = 0")
NO_FOLDER = ("there = 0", "lockfile = 0", "mark = 0", "kept = 0", "files = 0", "record = 0", "lease = 0")
COMPLETE = "mark and (filled[me] or not kept)"
NOT_COMPLETE = f"not ({COMPLETE})"
VALID = "mark and (files == 2 or not kept)"
FILLED = Branch("True", ("filled[me] = (files == 2)",))


def step(name: str, call: str, *branches: Branch) -> Step:
    return Step(name, call, branches)


def _make_entry(name: str, again: str) -> tuple[Step, Step]:
    """`mkdir`, and where there is something, whether it is a folder."""
    return (
        step(f"make_{name}", MAKE_ENTRY,
             Branch("there == 0", ("last = last + 1", "there = last"), f"made_{name}"), Branch("there != 0")),
        step(f"seen_{name}", STAT_ENTRY, Branch("there == 0", ("pin[me] = 0",), again), Branch("there != 0")),
    )  # fmt: skip


def _made(name: str) -> Step:
    return step(f"made_{name}", "", Branch("True"))


def _look() -> tuple[Step, ...]:
    """Is it complete?"""
    return (
        step("scan", SCAN_FILES, FILLED),
        step("look", READ_MARK, Branch(COMPLETE, (), OVER), Branch(NOT_COMPLETE)),
    )


def _flock(again: str, wait: str) -> tuple[Step, ...]:
    """`Locks.take`. The calls of filelock 4 are among it."""
    refused = ("mine[me] = 0", "pin[me] = 0")
    return (
        step("pin_lock", OPEN_LOCK, Branch("there == 0", (), again),
             Branch("there != 0", ("pin[me] = there", "lockfile = 1"))),
        *_make_entry("again", again), _made("again"),
        step("create_lock", OPEN_LOCK,
             Branch("there == 0", (), "no_folder"),
             Branch("there != 0 and lockfile == 0", ("mine[me] = there", "lockfile = 1"), "take_flock"),
             Branch("there != 0 and lockfile != 0")),
        step("open_lock", OPEN_LOCK, Branch("lockfile == 0", refused, wait),
             Branch("lockfile != 0", ("mine[me] = there",))),
        step("take_flock", FLOCK,
             Branch("owner[mine[me]] == 0", ("owner[mine[me]] = me", "held[me] = mine[me]")),
             Branch("owner[mine[me]] != 0", refused, wait)),
        step("unlinked", "", Branch("True"), Branch("mine[me] != there", CLOSED, wait)),
        step("parent", STAT_ENTRY, Branch("there == 0", CLOSED, again), Branch("there != 0")),
        step("still_there", STAT_LOCK, Branch("pin[me] == there and lockfile != 0"),
             Branch("pin[me] != there or lockfile == 0", (), "unlock_moved")),
    )  # fmt: skip


def _no_folder(again: str, wait: str) -> Step:
    """Where filelock could not make its file: whether that is because of the folder."""
    refused = ("mine[me] = 0", "pin[me] = 0")
    return step("no_folder", STAT_ENTRY, Branch("there == 0", refused, again), Branch("there != 0", refused, wait))


def _lease(again: str, wait: str) -> tuple[Step, ...]:
    """Where `flock` is missing. A lease whose holder has died counts as free: how long that takes to be seen, is how
    long a process waits before this step."""
    return (
        step("take_lease", TAKE_LEASE, Branch("there == 0", (), again),
             Branch("there != 0 and (lease == 0 or dead[lease])", ("lease = me",)),
             Branch("there != 0 and lease != 0 and not dead[lease]", (), wait)),
    )  # fmt: skip


def _free(leased: bool) -> tuple[str, ...]:
    return (("lease = lease * (lease != me)",) if leased else CLOSED)


def _contender(leased: bool) -> tuple[Step, ...]:
    """`Contender.look` again and again, the engine's build, `Held.complete` and `Held.release`."""
    free = _free(leased)
    failed = ("building[me] = 0", "home[me] = 0")
    lost = "unlock_failed"
    return (
        *_look(),
        *_make_entry("first", "scan"), _made("first"),
        *(_lease("scan", "waits") if leased else _flock("scan", "waits")),
        step("scan_again", SCAN_FILES, FILLED),
        step("look_again", READ_MARK, Branch(COMPLETE, (), "unlock"), Branch(NOT_COMPLETE)),
        step("other_builder", READ_HOLDER,
             Branch("record != 0 and record != me and not dead[record]", (), lost),
             Branch("record == 0 or record == me or dead[record]")),
        step("begin", REMOVE_MARK,
             Branch("True", (f"redone = redone or ({VALID})", "mark = 0", "building[me] = 1", "home[me] = there"))),
        step("old_files", STAT_FILES, Branch("files == 0", (), "put_away"), Branch("files != 0")),
        step("any_files", SCAN_FILES, Branch("files == 2"), Branch("files != 2", (), "sign")),
        step("put_away", MOVE_FILES, Branch("True", ("files = 0",))),
        step("sign", WRITE_HOLDER, Branch("there == 0", failed, lost), Branch("there != 0", ("record = me",))),
        step("make_files", MAKE_FILES, Branch("there == 0", failed, lost),
             Branch("there != 0 and files == 0", ("files = 1",), "go_on"), Branch("there != 0 and files != 0")),
        step("seen_files", STAT_FILES, Branch("True")),
        step("go_on", "", Branch("True"), Branch("True", failed, "unsign")),
        step("build", BUILD, Branch("files != 0", ("files = 2",)), Branch("files == 0")),
        step("ready", "", Branch("True"), Branch("True", failed, "unsign")),
        step("count_files", SCAN_FILES, FILLED),
        step("complete", WRITE_MARK, Branch("there == 0", failed),
             Branch("there != 0", ("mark = 1", "kept = filled[me]", *failed))),
        step("unsign", READ_HOLDER, Branch("record == me"), Branch("record != me", (), "left")),
        step("signed_off", REMOVE_HOLDER, Branch("True", ("record = 0",))),
        step("left", LIST_ENTRY, Branch("there == 0 or mark or record != 0", (), "unlock"),
             Branch("there != 0 and not mark and record == 0", (), "unlock"),  # files of a build that was killed
             Branch("there != 0 and not mark and record == 0")),
        step("left_files", SCAN_FILES, Branch("files == 2", (), "unlock"), Branch("files != 2")),
        step("drop", MOVE_ENTRY, Branch("True", NO_FOLDER)),
        step("unlock", "" if leased else UNLOCK, Branch("True", free, OVER)),
        step("unlock_failed", "" if leased else UNLOCK, Branch("True", free, "scan")),
        *(() if leased else (
            _no_folder("scan", "waits"),
            step("unlock_moved", UNLOCK, Branch("True", free, "waits"), Branch("True", free, "scan")),
        )),
        step("waits", READ_HOLDER, Branch("True", (), "scan")),
    )  # fmt: skip


def _clear(leased: bool) -> tuple[Step, ...]:
    """`stoker cache clear`, once."""
    free = _free(leased)
    taken = _lease(OVER, OVER) if leased else _flock(OVER, OVER)
    return (
        *taken,
        step("others", READ_HOLDER, Branch("record != 0 and record != me and not dead[record]", (), "unlock"),
             Branch("record == 0 or record == me or dead[record]")),
        step("take_away", MOVE_ENTRY, Branch("True", NO_FOLDER)),
        step("unlock", "" if leased else UNLOCK, Branch("True", free, OVER)),
        *(() if leased else (_no_folder(OVER, OVER), step("unlock_moved", UNLOCK, Branch("True", free, OVER)))),
    )  # fmt: skip


def compile_lock(contenders: int, *, leased: bool = False, cleared: bool = False) -> Protocol:
    """Processes on one compile cache, each of which builds at most once.

    Left out: `flock` that excludes nobody, leases taken from a process that was stopped for longer than one lasts
    (`Held.lost`), full disks, and `void`, which needs no lock.
    """
    programs = [_contender(leased) for _ in range(contenders)]
    if cleared:
        programs.append(_clear(leased))
    return protocol(f"compile-{'lease' if leased else 'lock'}-{contenders}{'-clear' if cleared else ''}",
                    programs, contenders)  # fmt: skip


def protocol(name: str, programs: Iterable[tuple[Step, ...]], contenders: int) -> Protocol:
    all_programs = tuple(programs)
    count = len(all_programs)
    none = [0] * (count + 1)
    each = range(1, contenders + 1)
    stays = " && ".join(f"(building[{n}] -> home[{n}] == there)" for n in each)
    signed = " && ".join(f"(at[{n}] == build && !dead[{n}] -> record == {n})" for n in each)
    claims = (
        Claim("one_builds", f"[] ({pairs(contenders, '!(building[a] && building[b])')})", "one builds at a time"),
        Claim("the_folder_stays", f"[] ({stays})", "a folder in which somebody builds is not taken away"),
        Claim("the_builder_is_known", f"[] ({signed})", "the record names the one who builds"),
        Claim("what_is_complete_is_not_built_again", "[] !redone", "nobody builds what is complete"),
        Claim("what_is_complete_is_whole", "[] (valid -> nobody_builds)",
              "nobody takes for complete what is being built"),
        Claim("all_end", "<> ended",
              "everybody who lives has built, or has seen it complete, at some time: no wake-up is lost", live=True),
    )  # fmt: skip
    return Protocol(
        name,
        {
            "there": 0, "last": 0, "lockfile": 0, "mark": 0, "kept": 0, "files": 0, "record": 0, "lease": 0,
            "redone": 0,
            "owner": [0] * (count + 3), "pin": none, "mine": none, "held": none, "filled": none, "building": none,
            "home": none,
        },
        all_programs,
        (*CLOSED, "building[me] = 0", "filled[me] = 0", "home[me] = 0"),
        claims,
        {
            "valid": VALID,
            "nobody_builds": " and ".join(f"not building[{n}]" for n in each),
        },
    )  # fmt: skip


def ports(servers: int, count: int, *, strangers: bool = False) -> Protocol:
    """Managers that want one port each, of `count`, and launch a server there: `hold_ports`, `let_go`, the check of who
    listens, `release`. The keeper of a manager that was killed ends its server some time later, which may have begun to
    listen meanwhile. A stranger takes a port that is not held, and gives it back.

    A port is chosen in turn here, so that nobody is unlucky for ever. Of three servers only the managers are killed.
    """
    managers = range(1, servers + 1)
    own = range(servers + 1, 2 * servers + 1)
    elsewhere = " and ".join(f"({{0}} == {n} or listens[{n}] != {{1}})" for n in own)

    def manager(number: int) -> tuple[Step, ...]:
        free = ("leases[leased[me]] = 0", "leased[me] = 0")
        mine = number + servers
        alone = elsewhere.format(mine, "port[me]")
        silent = f"{elsewhere.format(0, 'port[me]')} and stranger != port[me]"
        return (
            step("pick", "", Branch(f"port[me] == {count}", ("port[me] = 1",)),
                 Branch(f"port[me] != {count}", ("port[me] = port[me] + 1",))),
            step("lease", FLOCK, Branch("leases[port[me]] == 0", ("leases[port[me]] = me", "leased[me] = port[me]")),
                 Branch("leases[port[me]] != 0", (), "pick")),
            step("look", "listeners", Branch(silent), Branch(f"not ({silent})", free, "pick")),
            step("hold", "bind", Branch("stranger != port[me]", ("holds[me] = port[me]",)),
                 Branch("stranger == port[me]", free, "pick")),
            step("launch", "", Branch("True", ("launched[me] = port[me]",))),
            step("await_ready", "listeners", Branch(f"listens[{mine}] == port[me]"),
                 Branch(f"dead[{mine}]", (), "terminate"),
                 Branch(f"listens[{mine}] != port[me] and not dead[{mine}]", (), "await_ready")),
            step("let_go", "close", Branch("True", ("holds[me] = 0",))),
            step("verify", "listeners", Branch(f"listens[{mine}] == port[me] and {alone}", ("serves[me] = port[me]",)),
                 Branch(f"not (listens[{mine}] == port[me] and {alone})", (), "terminate")),
            step("terminate", "", Branch("True", ("serves[me] = 0", "launched[me] = 0"))),
            step("gone", "", Branch(f"listens[{mine}] == 0"), Branch(f"listens[{mine}] != 0", (), "gone")),
            step("release", UNLOCK, Branch("True", ("holds[me] = 0", *free), OVER)),
        )  # fmt: skip

    def server(number: int) -> tuple[Step, ...]:
        """As its keeper sees it: it ends when it is told to, or when its manager has gone."""
        stays = f"launched[{number}] != 0 and not dead[{number}]"
        return (
            step("idle", "", Branch(f"launched[{number}] != 0", (), "bind"),
                 Branch(f"launched[{number}] == 0 and (dead[{number}] or at[{number}] == {OVER})", (), OVER),
                 Branch(f"launched[{number}] == 0 and not (dead[{number}] or at[{number}] == {OVER})", (), "idle")),
            step("bind", "bind", Branch("True", (f"listens[me] = launched[{number}]",))),
            step("serve", "", Branch(stays, (), "serve"), Branch(f"not ({stays})", ("listens[me] = 0",), OVER)),
        )  # fmt: skip

    def stranger() -> tuple[Step, ...]:
        free = [f"({' and '.join(f'holds[{n}] != {port}' for n in managers)} and "
                f"{' and '.join(f'listens[{n}] != {port}' for n in own)})" for port in range(1, count + 1)]
        came = [Branch(each, (f"stranger = {port}",)) for port, each in enumerate(free, 1)]
        return (step("comes", "", *came, Branch("True", (), OVER)), step("goes", "", Branch("True", ("stranger = 0",))))

    programs = [manager(n) for n in managers] + [server(n) for n in managers]
    programs += [stranger()] if strangers else []
    none = [0] * (len(programs) + 1)
    leased = " && ".join(f"(serves[{n}] -> leased[{n}] == serves[{n}])" for n in managers)
    claims = (
        Claim("one_has_a_lease", f"[] ({pairs(servers, '!(leased[a] && leased[a] == leased[b])')})",
              "a port is leased once"),
        Claim("one_holds", f"[] ({pairs(servers, '!(holds[a] && holds[a] == holds[b])')})",
              "a port is held once, although the kernel would let two of one user bind it"),
        Claim("one_serves", f"[] ({pairs(servers, '!(serves[a] && serves[a] == serves[b])')})",
              "no two serve at one port"),
        Claim("what_serves_is_leased", f"[] ({leased})",
              "the lease lasts until the server is gone"),
        Claim("all_end", "<> ended", "everybody who lives gets a port at some time", live=True),
    )  # fmt: skip
    world: dict[str, int | list[int]] = {
        "leases": [0] * (count + 1), "stranger": 0,
        **{name: list(none) for name in ("port", "leased", "holds", "launched", "listens", "serves")},
    }  # fmt: skip
    dies = ("leases[leased[me]] = 0", "leased[me] = 0", "holds[me] = 0", "serves[me] = 0", "listens[me] = 0")
    immortal = frozenset(range(servers + 1, len(programs) + 1)) if servers > 2 else frozenset[int]()
    return Protocol(f"ports-{servers}{'-stranger' if strangers else ''}", world, tuple(programs), dies, claims,
                    immortal=immortal)  # fmt: skip
