"""Groups of real commands on this machine: what becomes of the others when one of them, or its server, goes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lifecycle.group import facts
from lifecycle.group.chart import GROUP
from lifecycle.group.facts import GroupFacts
from lifecycle.journal import Record, replay
from tests.cli.command import Stoker
from tests.fake import fake_command
from tests.group.commands import Hosts, ask, is_transition
from tests.processes.trees import wait_for_end


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    try:
        yield hosts
        assert all(command.process.poll() is not None for command in hosts.commands), "a command did not end"
        assert hosts.left() == []
        assert sorted(tmp_path.glob("host-*/stoker/servers/*.json")) == []
    finally:
        hosts.end()


def test_members_start_in_order_serve_and_end_with_the_head(hosts: Hosts) -> None:
    head, worker = hosts.pair()
    assert ask(head.url())
    first = worker.entered("Healthy", "g-rank-1")
    assert worker.said[first - 1]["time"] <= head.said[head.entered("Starting", "g-rank-0") - 1]["time"]
    head.signal(signal.SIGTERM)
    assert (head.code(), worker.code()) == (0, 0)
    assert head.states("g") == ["Gathering", "Starting", "Healthy", "Draining", "Stopped"]
    assert worker.states("g-host-1") == ["Joining", "Present", "Draining", "Stopped"]
    ended = [head.entered("Stopped", "g-rank-0"), worker.entered("Stopped", "g-rank-1")]
    assert head.said[ended[0] - 1]["time"] <= worker.said[ended[1] - 1]["time"], "the head's member goes first"


def test_the_journal_of_a_group_replays(hosts: Hosts) -> None:
    head, worker = hosts.pair()
    head.signal(signal.SIGTERM)
    assert (head.code(), worker.code()) == (0, 0)
    own = [msgspec.convert(each, Record) for each in head.said if each["kind"] != "url" and each["server"] == "g"]
    assert replay(own, GROUP, facts.EVENTS, GroupFacts)["g"].state == "Stopped"


def test_a_signal_to_any_host_drains_the_whole_group(hosts: Hosts) -> None:
    head, worker = hosts.pair()
    worker.signal(signal.SIGTERM)
    assert (head.code(), worker.code()) == (0, 0)
    assert any(each.get("event") == "HostLeaves" for each in head.said)


@pytest.mark.fault(23, 84)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_member_that_dies_takes_the_others_with_it_and_all_start_again(hosts: Hosts, rank: int) -> None:
    head, worker = hosts.pair()
    pids = [head.pid("g-rank-0"), worker.pid("g-rank-1")]
    os.kill(pids[rank], signal.SIGKILL)
    lost = head.entered("Draining")
    assert wait_for_end(pids) == set()
    again = head.entered("Healthy", after=lost)
    head.wait(lambda each: each["kind"] == "url", after=again)
    assert ask(head.url())
    assert f"g-rank-{rank}" in next(each["summary"] for each in head.diagnoses() if each["of"] == "g")
    assert {head.pid("g-rank-0"), worker.pid("g-rank-1")}.isdisjoint(pids)
    head.signal(signal.SIGTERM)
    assert (head.code(), worker.code()) == (0, 0)


def test_a_host_whose_command_is_killed_is_missed_at_once_and_may_come_back(hosts: Hosts) -> None:
    head, worker = hosts.pair()
    pids = [head.pid("g-rank-0"), worker.pid("g-rank-1")]
    worker.signal(signal.SIGKILL)
    lost = head.entered("Draining")
    assert wait_for_end(pids) == set(), "the keeper ends what the command cannot"
    assert head.diagnoses()[0]["cause"] == "host-lost"
    another = hosts.start(1)
    head.entered("Healthy", after=lost)
    head.signal(signal.SIGTERM)
    assert (head.code(), another.code()) == (0, 0)


def test_hosts_whose_head_is_killed_end_their_members_and_go_on_with_the_next_head(hosts: Hosts) -> None:
    head, worker = hosts.pair()
    pids = [head.pid("g-rank-0"), worker.pid("g-rank-1")]
    head.signal(signal.SIGKILL)
    worker.entered("Draining")
    assert wait_for_end(pids) == set()
    another = hosts.start(0)
    another.entered("Healthy")
    another.signal(signal.SIGTERM)
    assert (another.code(), worker.code()) == (0, 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_host_that_is_stopped_is_missed_by_its_heartbeats_and_comes_back_clean(hosts: Hosts, rank: int) -> None:
    head, worker = hosts.pair()
    frozen, other = (head, worker) if rank == 0 else (worker, head)
    frozen.signal(signal.SIGSTOP)
    own = other.pid("g-rank-1" if rank == 0 else "g-rank-0")
    lost = other.entered("Draining")
    assert wait_for_end([own]) == set()
    frozen.signal(signal.SIGCONT)
    frozen.entered("Draining")
    after = lost if other is head else head.entered("Draining")
    head.entered("Healthy", after=after)
    head.signal(signal.SIGTERM)
    assert (head.code(), worker.code()) == (0, 0)


def test_the_end_of_a_member_that_nobody_can_see_is_said_to_be_unseen(hosts: Hosts) -> None:
    head, worker = hosts.pair()
    worker.signal(signal.SIGSTOP)
    at = head.entered("Backoff")
    assert head.said[at - 1]["detail"]["unseen"] == ["rank-1"]
    head.signal(signal.SIGTERM)
    assert head.code() == 0
    worker.signal(signal.SIGCONT)
    worker.entered("Joining", after=worker.entered("Draining"))
    worker.signal(signal.SIGTERM)
    assert worker.code() == 0


@pytest.mark.fault(7, 70)
def test_a_host_that_never_comes_is_named_and_the_head_gives_up(hosts: Hosts) -> None:
    hosts.nodes = 3
    head, worker = hosts.start(0, "gather_timeout=4"), hosts.start(1)
    assert head.code() == 1
    assert "rank 2 of 3 hosts did not come" in head.told
    assert worker.code() == 1
    assert "rank 2 of 3 hosts did not come" in worker.told, "the head tells the others why"


@pytest.mark.fault(7)
def test_a_head_that_never_comes_is_named_and_the_host_gives_up(hosts: Hosts) -> None:
    worker = hosts.start(1, "gather_timeout=1")
    assert worker.code() == 1
    assert f"rank 1 has not joined the head at 127.0.0.1, port {hosts.head.rpartition(':')[2]}" in worker.told


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 75)])
@pytest.mark.parametrize("verb", [("serve", "--json"), ("generate", "in.jsonl", "--output", "out.jsonl")])
def test_a_host_that_is_told_to_end_before_it_has_found_its_head_has_not_done_its_part(
    hosts: Hosts, number: signal.Signals, code: int, verb: tuple[str, ...]
) -> None:
    worker = hosts.start(1, verb=verb)
    worker.mentions("Joining")
    worker.signal(number)
    assert worker.code() == code


def test_the_order_in_which_hosts_come_does_not_matter(hosts: Hosts) -> None:
    hosts.nodes = 3
    two, one = hosts.start(2), hosts.start(1)
    two.entered("Joining")
    head = hosts.start(0)
    head.entered("Healthy")
    one.signal(signal.SIGINT)
    assert (head.code(), one.code(), two.code()) == (0, 0, 0)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (("the-key-of-the-head", "quite-another-key"), "another key than the head"),
        (("the-key-of-the-head", ""), "no key, and the head has one"),
        (("", "a-key-of-its-own-"), "a key, and the head has none"),
    ],
)
def test_a_host_with_another_key_is_refused_and_both_say_so(hosts: Hosts, keys: tuple[str, str], words: str) -> None:
    head = hosts.start(0, "gather_timeout=4", env={"STOKER_GROUP_KEY": keys[0]})
    worker = hosts.start(1, env={"STOKER_GROUP_KEY": keys[1]})
    assert (head.code(), worker.code()) == (1, 1)
    assert f"{words}: give every host the same key, by STOKER_GROUP_KEY" in worker.told
    assert words in head.told
    assert not [key for key in keys if key and key in head.told + worker.told + str(head.said) + str(worker.said)]


def test_hosts_with_the_same_key_make_a_group(hosts: Hosts) -> None:
    env = {"STOKER_GROUP_KEY": "one-key-for-all-of-them"}
    head, worker = hosts.start(0, env=env), hosts.start(1, env=env)
    head.entered("Healthy")
    head.signal(signal.SIGTERM)
    assert (head.code(), worker.code()) == (0, 0)


def test_a_host_with_other_settings_is_refused_by_their_names(hosts: Hosts) -> None:
    head, worker = hosts.start(0, "gather_timeout=4"), hosts.start(1, "served_name=fake2")
    assert (head.code(), worker.code()) == (1, 1)
    assert "other settings than the head: served_name differ" in worker.told


def test_a_second_host_of_the_same_rank_is_refused(hosts: Hosts) -> None:
    head, worker = hosts.pair()
    second = hosts.start(1, "gather_timeout=1")
    assert second.code() == 1
    assert "give each host its own rank" in second.told
    head.signal(signal.SIGTERM)
    assert (head.code(), worker.code()) == (0, 0)


def test_a_hopeless_member_ends_the_group_at_once_and_every_host_says_why(hosts: Hosts) -> None:
    head, worker = hosts.start(0), hosts.start(1, exit_after=0.5, say=["error: unrecognized arguments: --wrong"])
    assert (head.code(), worker.code()) == (1, 1)
    assert head.states("g").count("Starting") == 1
    for told in (head.told, worker.told):
        assert "unrecognized arguments: --wrong" in told


def test_a_group_has_one_budget_of_attempts(hosts: Hosts) -> None:
    head = hosts.start(0, "max_attempts=2")
    worker = hosts.start(1, exit_after=1.0)
    assert (head.code(), worker.code()) == (1, 1)
    assert head.states("g").count("Starting") == 2


def test_a_second_interrupt_ends_at_once(hosts: Hosts) -> None:
    head, worker = hosts.pair("drain_timeout=200", "terminate_timeout=300", on_term="ignore")
    head.signal(signal.SIGINT)
    head.entered("Draining")
    head.signal(signal.SIGINT)
    assert head.code() == 130
    assert worker.code() == 0


def test_only_the_head_generates_and_every_answer_is_there_although_a_member_dies(hosts: Hosts) -> None:
    prompts = "".join(f'{{"prompt": "number {n}"}}\n' for n in range(60))
    (hosts.folder / "in.jsonl").write_text(prompts)
    verb = ("generate", "in.jsonl", "--output", "out.jsonl", "--concurrency", "4")
    head = hosts.start(0, verb=verb, reply_delay=0.2)
    worker = hosts.start(1)
    worker.entered("Healthy", "g-rank-1")
    os.kill(worker.pid("g-rank-1"), signal.SIGKILL)
    assert (head.code(), worker.code()) == (0, 0)
    assert len((hosts.folder / "out.jsonl").read_text().splitlines()) == 60
    assert worker.states("g-rank-1").count("Healthy") == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_job_that_another_host_has_ended_is_not_said_to_be_done(hosts: Hosts, number: signal.Signals) -> None:
    """Whoever asks for the head's exit code must know that there is work left."""
    (hosts.folder / "in.jsonl").write_text("".join(f'{{"prompt": "number {n}"}}\n' for n in range(500)))
    head = hosts.start(0, verb=("generate", "in.jsonl", "--output", "out.jsonl", "--concurrency", "1"), reply_delay=0.2)
    worker = hosts.start(1)
    worker.entered("Healthy", "g-rank-1")
    worker.signal(number)
    assert head.code() == 75
    worker.code()
    assert "are left" in head.told


@pytest.mark.parametrize("words", [("--node-rank", "1"), ("--head", "127.0.0.1"), ("--nodes", "1", "--node-rank", "1")])
def test_words_for_one_of_several_hosts_are_refused_where_there_is_one(stoker: Stoker, words: tuple[str, ...]) -> None:
    ended = stoker.run("serve", "--command", fake_command(), "--model", "fake", *words)
    assert (ended.code, "--nodes N" in ended.err) == (2, True)


@pytest.fixture
def stoker(tmp_path: Path) -> Stoker:
    return Stoker(tmp_path)


def test_where_nothing_is_left_to_generate_the_other_hosts_are_sent_home(hosts: Hosts) -> None:
    (hosts.folder / "in.jsonl").write_text("")
    worker = hosts.start(1)
    head = hosts.start(0, verb=("generate", "in.jsonl", "--output", "out.jsonl"))
    assert (head.code(), worker.code()) == (0, 0)


def test_a_transition_of_a_member_is_not_one_of_its_group() -> None:
    record = {"kind": "transition", "after": "Healthy", "server": "g-rank-0"}
    assert is_transition(record, "Healthy", "g-rank-0")
    assert not is_transition(record, "Healthy")
