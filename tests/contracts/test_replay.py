"""A random sample of our own receipts, drawn by the commit, is run again and must give the same bits."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
from tests.contracts.evidence import made_up, receipts_of

from samebits.checker.present import Present
from samebits.checker.proving import Task, tasks
from samebits.checker.replaying import Candidate, candidates, judged, replay, sampled
from samebits.checker.status import standings
from samebits.checker.targets import OPERATORS
from samebits.cli.commands.contract_components import known_components
from samebits.contracts.receipts import FALSE, Receipt, compared
from samebits.contracts.store import Store, folder_digest
from samebits.records.shipped import checkout, shipped

SECONDS = 10.0


def seed() -> str:
    """The commit, or where there is none the receipts themselves."""
    top = checkout()
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=top, capture_output=True, text=True) if top else None
    return done.stdout.strip() if done and done.returncode == 0 else folder_digest(shipped("receipts"))


def test_a_sample_of_our_receipts_is_reproduced() -> None:
    known = known_components(None)
    found = standings(known, Store(shipped("receipts")))
    listed = candidates(known, [one for each in found.values() for one in each.receipts])
    assert listed, "no receipt can be replayed here: all are stale; renew them with `make prove`"
    done = list(replay(sampled(listed, seed(), None, SECONDS), known, SECONDS))
    assert done, f"none of {len(listed)} fits {SECONDS} s"
    wrong = [str(each) for each in done if each.verdict != "reproduced"]
    assert not wrong, "\n".join(["", f"seed {seed()}", *wrong])


@pytest.fixture(scope="module")
def listed() -> list[Candidate]:
    component = OPERATORS.components()["swiglu"]
    present = Present({"swiglu": component})
    made = [replace(each, seconds=2.0 if each.level < 4 else 500.0) for each in made_up(component, present)]
    return candidates({"swiglu": component}, [compared(each, present.of(each)) for each in made])


def test_a_sample_is_fixed_by_its_seed_and_fits(listed: list[Candidate]) -> None:
    one, again, other = (sampled(listed, seed, 5, 60) for seed in ("a", "a", "b"))
    assert one == again != other and len(one) == 5
    assert sum(each.seconds for each in sampled(listed, "a", None, 11)) <= 11
    assert len({each.task for each in listed}) == len(listed)
    assert not [each for each in listed if "triton" in each.task.backend and each.task.level in (2, 3)]


def test_the_seconds_end_it(listed: list[Candidate]) -> None:
    ran: list[Task] = []

    def slow(task: Task, components: object, seed: int) -> list[Receipt | str]:
        ran.append(task)
        return ["could not be judged"]

    assert len(list(replay(listed, {}, 1e-9, slow))) == len(listed[0].receipts) and len(ran) == 1


def test_what_a_replay_may_say() -> None:
    component = OPERATORS.components()["swiglu"]
    present = Present({"swiglu": component})

    def receipt(method: str) -> Receipt:
        task = next(each for each in tasks(component, (2, 4)) if each.method == method)
        return receipts_of(task, present)[0]

    run, proof = receipt("examples"), receipt("dag")
    assert judged(run, [run])[0] == "reproduced" and judged(run, ["no library"])[0] == "could not be judged"
    for change in (
        {"result": "0" * 64},
        {"holds": False},
        {"calls": 1},
        {"planted": 7},
        {"killed": {}},
        {"by": "another"},
        {"cases": 10**9},
        {"classes": {**run.classes, "normal": 10**9}},
    ):
        assert judged(run, [replace(run, **change)])[0] == FALSE, change  # type: ignore[arg-type]
    # Elsewhere there may be more launches to compare; which recipes were met is the same anywhere.
    elsewhere = replace(run, where={**run.where, "processor": "another"})
    assert judged(elsewhere, [replace(run, cases=1)])[0] == "reproduced"
    assert judged(elsewhere, [replace(run, classes={**run.classes, "random_bits": 1})])[0] == FALSE
    assert judged(proof, [replace(proof, result="0" * 64)])[0] == FALSE
    assert judged(run, [])[0] == FALSE


@pytest.mark.parametrize(
    ("method", "package", "replayed"),
    [
        ("examples", "torch", True),
        ("draws", "torch", True),
        ("draws", "numpy", True),
        ("types", "mypy", True),
        ("integers", "z3-solver", False),
        ("enumeration", "numpy", True),
    ],
)
def test_other_versions_keep_bits_but_not_words(method: str, package: str, replayed: bool) -> None:
    """Kernels and drawn cases are the same anywhere; a prover's queries are those of one version."""
    component = OPERATORS.components()["softmax"]
    present = Present({"softmax": component})
    task = next(each for each in tasks(component, (1, 2, 3, 4)) if each.method == method and not each.lacks())
    made = receipts_of(task, present)[0]
    other = replace(made, where={**made.where, package: "9"})
    for each, expected in ((made, True), (other, replayed)):
        beside = compared(each, present.of(each))
        assert bool(candidates({"softmax": component}, [beside])) is expected and beside.counts
