"""Ports are leased against other instances, held against everybody else, and whoever takes one is named."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.errors import PortTaken
from lifecycle.resources.local import lease_dir
from lifecycle.resources.ports import Held, _address, _serves, free_port, hold_ports, holder_of, strangers
from tests.fake import fake_argv
from tests.processes.trees import is_free

HERE = "127.0.0.1"
APART = "127.11.0.1"  # its ports are nobody else's: for tests that need a number to be free, and not just any
NOBODY: frozenset[int] = frozenset()
IP_LOCAL_PORT_RANGE = 51  # linux/in.h, since Linux 6.3

HOLDER = """
import sys
from pathlib import Path
from lifecycle.resources.ports import hold_ports
print("up", flush=True)
sys.stdin.readline()
held = hold_ports("127.0.0.1", None, int(sys.argv[2]), Path(sys.argv[1]))
print(*held.numbers, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def leases(tmp_path: Path) -> Path:
    return tmp_path


@contextmanager
def holder(leases: Path, count: int) -> Iterator[subprocess.Popen[str]]:
    """Another instance, which holds ports as soon as it gets a line."""
    argv = (sys.executable, "-c", HOLDER, str(leases), str(count))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def ports_of(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


@contextmanager
def listener(port: int = 0, *, reuse_port: bool = False, address: str = HERE) -> Iterator[int]:
    """A listening socket of this process."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((address, port))
        listening.listen()
        yield listening.getsockname()[1]


@contextmanager
def holding(leases: Path, wanted: int | None = None, count: int = 1, address: str = HERE) -> Iterator[Held]:
    held = hold_ports(address, wanted, count, leases)
    try:
        yield held
    finally:
        held.release()


@pytest.mark.fault(15)
def test_eight_managers_at_a_barrier_get_distinct_ports(leases: Path) -> None:
    with ExitStack() as stack:
        managers = [stack.enter_context(holder(leases, 3)) for _ in range(8)]
        for manager in managers:
            go(manager)
        ports = [port for manager in managers for port in ports_of(manager)]
        assert len(ports) == 24
        assert len(set(ports)) == 24


def test_a_lease_keeps_other_instances_off_also_when_the_hold_is_let_go(leases: Path) -> None:
    with holding(leases) as held:
        (port,) = held.numbers
        for _ in range(2):
            with pytest.raises(PortTaken, match="another server of this user's Stoker") as error:
                hold_ports(HERE, port, 1, leases)
            assert error.value.port == port
            held.let_go()
    with holding(leases, port) as again:
        assert again.numbers == (port,)


def test_death_releases_a_lease(leases: Path) -> None:
    with holder(leases, 2) as manager:
        go(manager)
        ports = ports_of(manager)
        manager.send_signal(signal.SIGKILL)
        manager.wait()
        for port in ports:
            with holding(leases, port):
                pass


def test_release_is_idempotent_and_gives_everything_back(leases: Path) -> None:
    held = hold_ports(HERE, None, 3, leases)
    for _ in range(3):
        held.release()
    for port in held.numbers:
        with holding(leases, port), pytest.raises(PortTaken):
            hold_ports(HERE, port, 1, leases)


def test_a_process_that_is_started_meanwhile_does_not_inherit_lease_or_hold(leases: Path) -> None:
    with holding(leases) as held, subprocess.Popen(("sleep", "100"), close_fds=False) as child:
        try:
            targets = {os.readlink(f"/proc/{child.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{child.pid}/fd")}
            assert not [target for target in targets if str(leases) in target]
            held.release()
            with holding(leases, held.numbers[0]):
                pass
        finally:
            child.kill()


@pytest.mark.fault(16)
def test_ports_that_an_engine_derives_from_its_first_are_held_as_well_and_given_back(leases: Path) -> None:
    held = hold_ports(HERE, None, 2, leases, (233, 234))
    first, extra = held.numbers
    try:
        for port in (first, extra, first + 233, first + 234):
            with pytest.raises(PortTaken):
                hold_ports(HERE, port, 1, leases)
    finally:
        held.release()
    for port in (first, extra, first + 233, first + 234):
        with holding(leases, port):
            pass


def test_a_free_port_is_taken_only_if_those_derived_from_it_are_free(
    leases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listener(address=APART) as taken:
        offers = iter([taken - 5, free_port(APART)])
        monkeypatch.setattr("lifecycle.resources.ports.free_port", lambda address: next(offers))
        held = hold_ports(APART, None, 1, leases, (5,))
        try:
            assert held.numbers[0] != taken - 5
            with holding(leases, taken - 5, address=APART):  # nothing of the first try is kept
                pass
        finally:
            held.release()


def test_a_port_asked_for_whose_derived_one_is_taken_names_the_holder(leases: Path) -> None:
    with listener(address=APART) as taken:
        with pytest.raises(PortTaken) as error:
            hold_ports(APART, taken - 5, 1, leases, (5,))
        assert error.value.port == taken
        assert f"pid {os.getpid()}" in error.value.holder


def test_a_port_whose_derived_one_cannot_be_is_refused(leases: Path) -> None:
    with pytest.raises(PortTaken, match="there is no such port"):
        hold_ports(HERE, 65535, 1, leases, (1,))


def test_if_one_of_several_ports_cannot_be_had_none_is_kept(leases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listener() as taken:
        first = free_port(HERE)
        monkeypatch.setattr("lifecycle.resources.ports.free_port", lambda address: taken)
        with pytest.raises(PortTaken, match="were tried"):
            hold_ports(HERE, first, 2, leases)
    with holding(leases, first):
        pass


def test_a_server_with_reuseaddr_binds_a_held_port_and_serves(leases: Path) -> None:
    with holding(leases) as held:
        (port,) = held.numbers
        with subprocess.Popen(fake_argv(port), stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                assert b"listening" in server.stdout.readline()
                for _ in range(5):  # all connections go to the one that listens
                    with socket.create_connection((HERE, port), timeout=5) as client:
                        client.sendall(b"GET /health HTTP/1.1\r\n\r\n")
                        assert client.recv(100).startswith(b"HTTP/1.1 200")
                assert strangers(HERE, port, NOBODY) == frozenset({server.pid})
            finally:
                server.kill()


@pytest.mark.parametrize("option", [socket.SO_REUSEADDR, socket.SO_REUSEPORT])
def test_either_option_lets_a_server_bind_a_held_port(leases: Path, option: int) -> None:
    with holding(leases) as held, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, option, 1)
        server.bind((HERE, held.numbers[0]))
        server.listen()
        assert strangers(HERE, held.numbers[0], NOBODY) == frozenset({os.getpid()})


def test_nobody_answers_at_a_held_port(leases: Path) -> None:
    with holding(leases) as held, pytest.raises(ConnectionRefusedError):
        socket.create_connection((HERE, held.numbers[0]), timeout=5)


def test_the_kernel_does_not_give_a_held_port_away(leases: Path) -> None:
    with holding(leases) as held:
        (port,) = held.numbers

        def taken_by_the_kernel() -> bool:
            with socket.socket() as other:
                try:
                    other.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=I", port << 16 | port))
                except OSError:
                    pytest.skip("this kernel cannot be asked for one port (Linux 6.3)")
                try:
                    other.bind((HERE, 0))
                except OSError:
                    return False
                return bool(other.getsockname()[1] == port)

        assert not taken_by_the_kernel()
        held.let_go()
        assert taken_by_the_kernel()


def test_a_program_without_reuseaddr_gets_a_held_port_only_when_it_is_let_go(leases: Path) -> None:
    with holding(leases) as held, socket.socket() as plain:
        with pytest.raises(OSError, match="in use"):
            plain.bind((HERE, held.numbers[0]))
        held.let_go()
        plain.bind((HERE, held.numbers[0]))


@pytest.mark.parametrize("reuse_port", [False, True])
@pytest.mark.parametrize("address", ["0.0.0.0", HERE])
def test_a_wanted_port_that_is_served_is_refused_naming_the_holder(
    leases: Path, reuse_port: bool, address: str
) -> None:
    argv = fake_argv(0, host=address, **({"reuse_port": True} if reuse_port else {}))
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().rpartition(b":")[2])
            with pytest.raises(PortTaken) as error:
                hold_ports(HERE, port, 1, leases)
            assert str(port) in str(error.value)
            assert f"pid {server.pid}" in str(error.value)
            assert "python" in str(error.value)
        finally:
            server.kill()
    with holding(leases, port):
        pass


def test_a_wanted_port_that_is_bound_and_not_served_is_refused(leases: Path) -> None:
    with socket.socket() as bound:
        bound.bind((HERE, 0))
        port = bound.getsockname()[1]
        with pytest.raises(PortTaken, match=str(port)):
            hold_ports(HERE, port, 1, leases)


def test_a_taken_port_is_passed_over_when_any_will_do(leases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listener() as taken:
        free = free_port(HERE)
        answers = iter([taken, taken, free])
        monkeypatch.setattr("lifecycle.resources.ports.free_port", lambda address: next(answers))
        with holding(leases) as held:
            assert held.numbers == (free,)


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])
def test_an_address_that_is_not_ours_is_an_error_of_the_system(leases: Path, address: str) -> None:
    with pytest.raises(OSError, match=r"assign|support"):
        hold_ports(address, None, 1, leases)


def test_a_port_is_free_again_while_old_connections_linger(leases: Path) -> None:
    """TIME_WAIT does not count as taken."""
    with listener() as port, socket.create_connection((HERE, port)):
        pass
    with holding(leases, port):
        pass


def test_leases_lie_in_a_private_folder_whatever_tmpdir_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = lease_dir()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert lease_dir() == before
    assert before.stat().st_mode & 0o077 == 0
    with holding(before) as held:
        assert not is_free(held.numbers[0])


@pytest.mark.fault(77)
def test_a_stranger_beside_our_listener_is_found() -> None:
    """SO_REUSEPORT lets two listen at one port; the kernel spreads connections over both."""
    with listener(reuse_port=True) as port:
        assert strangers(HERE, port, NOBODY) == frozenset({os.getpid()})
        with subprocess.Popen(fake_argv(port, reuse_port=True), stdout=subprocess.PIPE) as other:
            try:
                assert other.stdout is not None
                assert b"listening" in other.stdout.readline()
                assert strangers(HERE, port, NOBODY) == frozenset({os.getpid(), other.pid})
                assert strangers(HERE, port, frozenset((os.getpid(),))) == frozenset({other.pid})
                assert strangers(HERE, port, frozenset((os.getpid(), other.pid))) is None
                assert "pid" in holder_of(port)
            finally:
                other.kill()


def test_a_listener_elsewhere_is_not_ours() -> None:
    with listener(address="127.0.0.2") as port:
        assert strangers(HERE, port, NOBODY) == frozenset()
        assert strangers("127.0.0.2", port, NOBODY) == frozenset({os.getpid()})
        assert strangers("0.0.0.0", port, NOBODY) == frozenset({os.getpid()})
    assert strangers(HERE, port, NOBODY) == frozenset()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6_is_told_from_ipv4(leases: Path) -> None:
    with holding(leases, address="::1") as held:
        (port,) = held.numbers
        with listener(port, address="::1", reuse_port=True):
            assert strangers("::1", port, NOBODY) == frozenset({os.getpid()})
            assert strangers(HERE, port, NOBODY) == frozenset()


def test_a_host_name_is_resolved() -> None:
    with listener() as port:
        assert strangers("localhost", port, NOBODY) == frozenset({os.getpid()})


addresses = st.ip_addresses()


@given(addresses)
def test_the_kernels_table_is_read_as_it_is_written(address: object) -> None:
    raw = ip_address(str(address)).packed
    words = [raw[at : at + 4][::-1].hex().upper() for at in range(0, len(raw), 4)]
    mapped = getattr(address, "ipv4_mapped", None)
    assert _address("".join(words)) == (mapped or address)


@given(st.ip_addresses(v=4), st.ip_addresses())
def test_who_listens_on_everything_serves_every_address(one: object, other: object) -> None:
    ours, theirs = ip_address(str(one)), ip_address(str(other))
    assert _serves(theirs, str(theirs))
    assert _serves(ip_address("0.0.0.0"), str(ours))
    assert _serves(ip_address("::"), str(theirs))
    if ours != theirs and not theirs.is_unspecified and not ours.is_unspecified:
        assert not _serves(theirs, str(ours))
