"""Exchanges that cannot end, on real processes: every rank that waits says in one line who came and who did not."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.parallel.programs import add
from tests.parallel.ranks import on_ranks
from tests.parallel.test_launching import Lines
from tests.parallel.wires import cut, on_both_sides, wired

from samebits.parallel import rank_errors
from samebits.parallel.launching import launch
from samebits.parallel.rank_errors import HungError, LostError, RankError, Waiting, arrivals, explained
from samebits.parallel.rank_status import STORE_SECONDS, Standing, StoreError, within
from samebits.parallel.world import World, join

PROGRAM = str(Path(__file__).with_name("programs.py"))
TIMEOUT = 2.0
HUNG = re.compile(r'^rank (\d): exchange \d+ "tree of ones" waited \d+\.\d s: ranks? ([\d, ]+) arrived, (.*)$')


def named(line: str) -> tuple[list[int], list[int]]:
    """(ranks that arrived, ranks that did not), as a line says."""
    found = HUNG.match(line)
    assert found, line
    missing = [int(each) for each in re.findall(r"rank (\d) did not", found[3])]
    return [int(each) for each in found[2].split(", ")], missing


def failure(world: World) -> str:
    try:
        add(world, 1)
    except RankError as error:
        assert "\n" not in str(error)
        return f"{type(error).__name__}: {error}"
    return "nothing failed"


def stopped(world: World) -> tuple[str, float]:
    """Rank 2 stops itself; whoever had to wait for it wakes it up again."""
    add(world, 1)
    world.store.set(f"pid/{world.rank}", str(os.getpid()))
    add(world, 1)
    if world.rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
        return "", 0.0
    start = time.monotonic()
    line, seconds = failure(world), time.monotonic() - start
    world.store.set(f"told/{world.rank}", "")
    world.store.wait([f"told/{rank}" for rank in (0, 1, 3)])
    os.kill(int(world.store.get("pid/2")), signal.SIGCONT)
    return line, seconds


def test_a_stopped_rank_is_named_by_everybody_within_the_timeout() -> None:
    for rank, (line, seconds) in enumerate(on_ranks(4, stopped, timeout=TIMEOUT)):
        if rank == 2:
            continue
        kind, _, text = line.partition(": ")
        assert kind == "HungError" and text.startswith(f"rank {rank}: exchange 5 ")
        assert named(text) == ([0, 1, 3], [2])
        assert text.endswith("rank 2 did not (it does not answer: stopped, dead or cut off)")
        assert seconds < TIMEOUT + 2 * rank_errors.GRACE_SECONDS + STORE_SECONDS


def elsewhere(world: World, what: str) -> str:
    """Rank 1 does something else. Nobody leaves before all have told what they saw."""
    add(world, 2)
    line = ""
    if world.rank != 1:
        if what == "is gone":
            world.store.wait(["gone"])
        line = failure(world)
    elif what == "waits":
        with pytest.raises(RankError) as raised:
            world.group.exchange("another sum", receives=[(torch.empty(43), 0)])
        line = f"{type(raised.value).__name__}: {raised.value}"
    elif what in ("dies", "is gone"):
        dist.destroy_process_group()
        world.store.set("gone", "")
    world.store.set(f"told/{world.rank}", "")
    world.store.wait([f"told/{rank}" for rank in range(world.size)])
    return line


def test_a_rank_that_computes_is_alive_in_no_exchange() -> None:
    first, _, last = on_ranks(3, elsewhere, "computes", timeout=TIMEOUT)
    for line in (first, last):
        assert named(line.removeprefix("HungError: ")) == ([0, 2], [1])
        assert re.search(
            r"it answers, and is in no exchange for \d\.\d s; its last was exchange 4 \"tree of ones\"", line
        )


def test_ranks_in_different_exchanges_are_named_with_theirs() -> None:
    first, second, last = on_ranks(3, elsewhere, "waits", timeout=TIMEOUT)
    for line in (first, last):
        assert named(line.removeprefix("HungError: ")) == ([0, 2], [1])
        assert line.endswith('rank 1 did not (it waits in exchange 5 "another sum")')
    assert second.startswith('HungError: rank 1: exchange 5 "another sum" waited ')
    assert second.endswith(
        'rank 1 arrived, rank 0 did not (it waits in exchange 5 "tree of ones"), '
        'rank 2 did not (it waits in exchange 5 "tree of ones")'
    )


@pytest.mark.parametrize("what", ["dies", "is gone"])
def test_a_lost_connection_is_named(what: str) -> None:
    first, _, last = on_ranks(3, elsewhere, what, timeout=10.0)
    assert first == 'LostError: rank 0: exchange 5 "tree of ones": the connection to rank 1 was lost'
    assert last == 'LostError: rank 2: exchange 5 "tree of ones": the connection to rank 1 was lost'


def tried_again(world: World) -> tuple[str, str]:
    return elsewhere(world, "dies"), failure(world) if world.rank == 0 else ""


def test_a_connection_known_to_be_lost_is_named_alone() -> None:
    """Its message cannot even be begun; those to other ranks can, and are not blamed."""
    (first, again), *_ = on_ranks(3, tried_again, timeout=10.0)
    assert first == 'LostError: rank 0: exchange 5 "tree of ones": the connection to rank 1 was lost'
    assert again == 'LostError: rank 0: exchange 6 "tree of ones": the connection to rank 1 was lost'


def misnamed(world: World) -> str:
    """Planted fault: ranks are taken to have arrived unless they say that they did not."""

    def everybody(_: Any, ranks: Sequence[int], seconds: float) -> dict[int, dict[str, Any]]:
        return {rank: {"waits": True, "what": "tree of ones", "number": 3, "seconds": 1.0} for rank in ranks}

    rank_errors.ask = everybody
    return elsewhere(world, "computes")


def test_a_line_that_names_the_wrong_ranks_is_noticed() -> None:
    line = on_ranks(3, misnamed, timeout=TIMEOUT)[0]
    with pytest.raises(AssertionError, match="ranks 0, 1, 2 all arrived, and wait for each other"):
        named(line.removeprefix("HungError: "))


HERE = Waiting(what="sum", number=7, rank=0, members=(0, 1, 2), peers=(1, 2))


@pytest.mark.parametrize(
    ("answers", "failures", "words"),
    [
        ({}, {}, "rank 0 arrived, rank 1 did not (it does not answer: stopped, dead or cut off), rank 2 did not (it "),
        ({}, {1: {"kind": "hung", "what": "sum", "number": 9, "line": ""}}, "ranks 0, 1 arrived, rank 2 did not (it"),
        (
            {},
            {1: {"kind": "hung", "what": "max", "number": 9, "line": ""}},
            'rank 0 arrived, rank 1 did not (it waits in exchange 9 "max"), ',
        ),
        ({}, {2: {"kind": "raised", "line": "rank 2: KeyError"}}, "rank 2 did not (it had failed: rank 2: KeyError)"),
        ({}, {2: {"kind": "left", "line": ""}}, "rank 2 did not (it had left)"),
        (
            {1: {"waits": False, "what": "", "number": 0, "seconds": 2.0}},
            {},
            "rank 1 did not (it answers, and is in no exchange for 2.0 s; it was in none before)",
        ),
    ],
)
def test_who_arrived(answers: dict[int, Any], failures: dict[int, Any], words: str) -> None:
    assert words in arrivals(HERE, answers, failures)


class Broken:
    """A store that fails, or that never answers."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> None:
            time.sleep(self.seconds)
            raise RuntimeError("the wire is cut")

        return call


def test_a_store_that_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_errors, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(rank_errors, "LAST_WORD_SECONDS", 0.05)
    world = World(rank=0, size=3, store=Broken(0.0), standing=Standing())
    hung = explained(world, HERE, RuntimeError("Timed out waiting 1000ms for recv operation to complete"))
    assert isinstance(hung, HungError)
    assert str(hung) == (
        'rank 0: exchange 7 "sum" waited 0.0 s for ranks 1, 2: the store cannot be reached to ask them: the wire is cut'
    )
    lost = explained(world, HERE, RuntimeError("Connection closed by peer [127.0.0.1]:1"))
    assert isinstance(lost, LostError)
    assert str(lost).endswith("connection to ranks 1, 2 was lost, and the store cannot be reached: the wire is cut")
    other = explained(world, HERE, RuntimeError("something new\nand its stack"))
    assert type(other) is RankError and str(other) == 'rank 0: exchange 7 "sum": something new'


def test_a_store_that_never_answers_is_not_waited_for() -> None:
    start = time.monotonic()
    with pytest.raises(StoreError, match=r"^no answer within 0\.1 s$"):
        within(0.1, Broken(5.0).check)
    assert time.monotonic() - start < 2.0


def test_ranks_that_do_not_join_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("samebits.parallel.world.JOIN_SECONDS", 0.5)
    with pytest.raises(
        HungError, match=r"^rank 0: 3 ranks did not join within 0\.5 s: rank 0 came, ranks 1, 2 did not$"
    ):
        join(timeout=0.5)
    monkeypatch.delenv("MASTER_ADDR")
    with pytest.raises(ValueError, match=r"^ranks: WORLD_SIZE is set, MASTER_ADDR not; allowed: what a launcher sets"):
        join()


@pytest.mark.parametrize(
    ("what", "code", "message"),
    [
        ("raise", 1, "rank 1 failed first (exit 1): ArithmeticError: the sum is odd"),
        ("kill", 137, "rank 1 failed first (killed by SIGKILL)"),
        ("stop", 3, "rank 0 failed first (exit 3): rank 0: "),
    ],
)
def test_the_launcher_names_the_first_cause(what: str, code: int, message: str) -> None:
    lines = Lines()
    outcome = launch([sys.executable, PROGRAM, what, "1"], 2, timeout=TIMEOUT, screen=lines)
    assert outcome.code == code and outcome.message.startswith(message), outcome
    if what == "stop":
        assert named(outcome.message.removeprefix("rank 0 failed first (exit 3): ")) == ([0], [1])
    else:
        assert b"[rank 1] before it happens\n" in lines.shown["err"]


@pytest.mark.parametrize("waited", [30.0, 0.0])
def test_a_rank_that_said_why_it_fails_is_waited_for(waited: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it may take long to leave, and the others, which only miss it, are heard first."""
    monkeypatch.setattr("samebits.parallel.launching.SETTLE_SECONDS", 0.1)
    monkeypatch.setattr("samebits.parallel.launching.LEAVING_SECONDS", waited)
    outcome = launch([sys.executable, PROGRAM, "leave slowly", "1"], 2, timeout=TIMEOUT, screen=Lines())
    found = outcome.code == 1 and outcome.message == "rank 1 failed first (exit 1): ArithmeticError: the sum is odd"
    assert found == bool(waited), outcome


@pytest.fixture
def wire() -> Iterator[tuple[str, str]]:
    with wired() as names:
        yield names


def test_a_cut_wire_is_named_on_both_sides(wire: tuple[str, str]) -> None:
    sides = on_both_sides(wire, [sys.executable, PROGRAM, "forever"], TIMEOUT)
    try:
        for side in sides:
            assert side.stdout and side.stderr
            line = side.stdout.readline()
            assert line == "at work\n", side.stderr.read()
        began = time.monotonic()
        cut(wire)
        first, second = (side.communicate(timeout=60)[1] for side in sides)
        assert time.monotonic() - began < TIMEOUT + 2 * rank_errors.GRACE_SECONDS + STORE_SECONDS
    finally:
        for side in sides:
            side.kill()
    assert [side.returncode for side in sides] == [3, 3], first + second
    assert re.fullmatch(
        r'samebits: rank 0: exchange \d+ "tree of ones" waited 2\.\d s: rank 0 arrived, rank 1 did not '
        r"\(it does not answer: stopped, dead or cut off\)\n",
        first,
    ), first
    assert re.fullmatch(
        r'samebits: rank 1: exchange \d+ "tree of ones" waited 2\.\d s for rank 0: the store cannot be '
        r"reached to ask them: .*\n",
        second,
    ), second
