"""Ten bugs planted into a real run are found by the tools, each with its granularity and its place, in a table.

    pytest tests/trace/test_ten_bugs.py -s

prints it. Beside them the same runs without a bug, which yield no finding."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

import pytest
from tests.parallel.ranks import on_ranks
from tests.trace import planted_bugs as bugs

from samebits.trace.findings import Finding
from samebits.trace.streams import HostRead, races
from samebits.train.inspecting import Subject, inspected
from samebits.train.trainer import Parts


@pytest.fixture(autouse=True)
def poisoned_memory() -> None:
    """As a user's process is: fresh memory is what the debug mode makes of it."""


def found_in(subject: Subject) -> list[Finding]:
    return list(inspected(subject, steps=1))


def overflow() -> list[Finding]:
    with bugs.overflowing_gate():
        return found_in(Subject(config=bugs.quick()))


def with_parts(**parts: object) -> Callable[[], list[Finding]]:
    return lambda: found_in(Subject(config=bugs.quick(), parts=Parts(**parts)))  # type: ignore[arg-type]


def with_linear(layer: int, place: int, fault: Callable[..., object]) -> Callable[[], list[Finding]]:
    def found() -> list[Finding]:
        parts = Parts(clip=bugs.unclipped) if fault is bugs.amplifying else Parts()
        model = partial(bugs.with_linear, layer=layer, place=place, fault=fault)
        return found_in(Subject(config=bugs.quick(), parts=parts, model=model))

    return found


def line_of(function: Callable[..., object], words: str) -> str:
    """file:line of the first line of a function that has these words."""
    lines, first = inspect.getsourcelines(function)
    return f"planted_bugs.py:{first + next(number for number, line in enumerate(lines) if words in line)}"


def host_read() -> str:
    """Where the trainer takes the norm of the gradient from the device: the first number that the host reads."""
    return next(each.where for each in bugs.transfers_of_a_step(waits=True) if isinstance(each, HostRead))


BUGS: dict[str, tuple[Callable[[], list[Finding]], str, Callable[[], str], str]] = {
    "overflowing buffer": (overflow, "kernel", lambda: "swiglu_backward in layers.0.mlp", "C-BUFSIZE-001"),
    "size mismatch in a copy": (
        with_parts(backward=bugs.mismatched_copy),
        "transfer",
        lambda: line_of(bugs.mismatched_copy, "staged.copy_"),
        "C-BUFSIZE-001",
    ),
    "unclipped activation gradient": (
        with_linear(0, bugs.Q, bugs.amplifying),
        "block",
        lambda: "layers.0.input_layernorm",
        "C-EMBED-GRAD-001",
    ),
    "default beta2": (with_parts(optimizer=bugs.by_default), "config", lambda: "optimizer.betas", "C-HYPERPARAMS-001"),
    "swapped n and k": (
        with_linear(1, bugs.UP_PLACE, bugs.swapping),
        "kernel",
        lambda: "gemm in layers.1.mlp",
        "C-GEMMARGS-001",
    ),
    "uninitialised state": (
        with_parts(moment=bugs.uninitialised),
        "block",
        lambda: "layers.0.self_attn",
        "C-GPUINIT-001",
    ),
    "missing synchronisation": (
        lambda: races(bugs.transfers_of_a_step(waits=False)),
        "transfer",
        host_read,
        "C-STREAMSYNC-001",
    ),
    "gradient not reaching a block": (
        with_linear(1, bugs.UP_PLACE, bugs.detached),
        "block",
        lambda: "layers.1.mlp",
        "C-GRADFLOW-001",
    ),
    "learning rate that never peaks": (
        lambda: found_in(Subject(config=bugs.quick("optimizer.warmup_steps=20"))),
        "config",
        lambda: "optimizer.warmup_steps",
        "CFG-OB2",
    ),
    "dropped gradient on a rank": (
        lambda: on_ranks(2, bugs.on_a_rank, 1)[0],
        "block",
        lambda: f"rank 1, {bugs.UP}",
        "DIST-002",
    ),
}


def test_each_of_ten_bugs_is_found_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """What is found first names the bug: what follows of it may be found as well."""
    lines, wrong = [], []
    for bug, (find, granularity, place, contract) in BUGS.items():
        found, wanted = find(), (granularity, place(), contract)
        first = found[0] if found else None
        if first is None or (first.granularity, first.place, first.contract) != wanted:
            wrong.append(f"{bug}: found {[str(each) for each in found]}; wanted {wanted}")
            continue
        lines.append(f"{bug:<32}{first.granularity:<10}{first.place:<44}{first.contract}: {first.message}")
    with capsys.disabled():
        print("", f"{'bug':<32}{'at':<10}{'place':<44}found", *lines, sep="\n")
    assert not wrong, "\n".join(wrong)
    assert len(lines) == len(BUGS) == 10


def test_the_same_run_without_a_bug_yields_no_finding() -> None:
    """On one process, on two ranks, and with a host that waits before it reads."""
    assert [str(each) for each in found_in(Subject(config=bugs.quick()))] == []
    assert on_ranks(2, bugs.on_a_rank, None) == [[], []]
    assert races(bugs.transfers_of_a_step(waits=True)) == []
