"""PE programs that cannot be: messages that float32 does not hold, two kernels on one PE, machines after a failure."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest

from samebits.sim import kernels
from samebits.sim.accelerator import accelerator, machine_of
from samebits.sim.kernels import Context, IpcqDeadlock, Request
from samebits.sim.machine import Machine
from samebits.sim.topology import PE

A, B = PE(0, 0, 0), PE(0, 0, 1)
Running = Generator[Request, Any, Any]


def joined() -> Machine:
    machine = machine_of(accelerator())
    machine.install({A: {"E": B}, B: {"W": A}})
    return machine


def passing(payload: Any) -> Callable[[Context], Running]:
    def kernel(pe: Context) -> Running:
        if pe.place == A:
            yield pe.send("E", payload)
            return None
        return (yield pe.receive("W"))

    return kernel


@pytest.mark.parametrize(
    "payload",
    [
        np.arange(32),
        np.array([1 << 24, -(1 << 62)]),
        np.array([0.5, -0.0, np.inf, np.nan]),
        np.array([0.1], np.float16),
        np.array([0.1], np.float32),
        np.array([0x7FA00001], np.uint32).view(np.float32),
        np.array([True, False]),
        np.zeros((0, 3)),
        2.5,
    ],
)
def test_a_message_keeps_its_numbers(payload: Any) -> None:
    got = joined().run_launch(passing(payload), [A, B]).results[B]
    wanted = np.asarray(payload)
    assert got.dtype == np.float32 and got.shape == wanted.shape
    if wanted.dtype == np.float32:
        assert got.tobytes() == wanted.tobytes()
        return
    np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))
    assert (np.signbit(got) == np.signbit(wanted.astype(np.float64))).all()


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (np.array([1, (1 << 24) + 1]), "int64 has 16777217, which float32 does not hold"),
        (np.array([(1 << 63) - 1]), "int64 has 9223372036854775807, which float32 does not hold"),
        (np.array([[0.5], [0.1]]), "float64 has 0.1, which float32 does not hold"),
        (np.array([1e300]), r"float64 has 1e\+300, which float32 does not hold"),
        (np.array([1 + 2j]), "a message of complex128; allowed: float32"),
        ("abc", "a message of <U3; allowed: float32"),
    ],
)
def test_numbers_that_would_become_others_are_refused(payload: Any, words: str) -> None:
    with pytest.raises(ValueError, match=rf"^{A} E: .*{words}"):
        joined().run_launch(passing(payload), [A, B])


def test_cast_in_silence_a_whole_number_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: payloads are cast, whatever they hold."""
    monkeypatch.setattr(kernels, "_captured", lambda payload, where: np.array(payload, dtype=np.float32))
    got = joined().run_launch(passing(np.array([(1 << 24) + 1])), [A, B]).results[B]
    assert got.tolist() == [1 << 24]


def test_a_pe_runs_one_kernel_at_a_time() -> None:
    """Two programs would wait for one queue: both messages come, and one program is never woken."""
    machine = joined()
    first = machine.launch(passing(np.ones(2)), [A, B], name="first")
    with pytest.raises(ValueError, match=rf"^launch: {B} has first to run; allowed: a launch on it after `run`$"):
        machine.launch(passing(np.ones(2)), [B], name="second")
    machine.run()
    assert first.results[B].tolist() == [1.0, 1.0]
    assert machine.run_launch(passing(np.full(2, 7.0)), [A, B]).results[B].tolist() == [7.0, 7.0]


def failing(pe: Context) -> Running:
    if pe.place == A:
        yield pe.send("E", np.full(2, 5.0))
        raise ArithmeticError("in the middle")
    yield pe.receive("W")
    return (yield pe.receive("W"))


def waiting(pe: Context) -> Running:
    return (yield pe.receive("E" if pe.place == A else "W"))


@pytest.mark.parametrize(
    ("kernel", "error"), [(failing, ArithmeticError), (waiting, IpcqDeadlock), (passing("text"), ValueError)]
)
def test_a_machine_on_which_a_kernel_failed_runs_no_other(kernel: Any, error: type[Exception]) -> None:
    """What it left under way would be the next one's messages."""
    machine = joined()
    with pytest.raises(error):
        machine.run_launch(kernel, [A, B])
    with pytest.raises(
        ValueError, match=rf"^launch: {kernel.__name__} has failed on this machine; allowed: a new machi"
    ):
        machine.run_launch(passing(np.full(2, 7.0)), [A, B])
    machine._failed = ""
    machine.run()  # nothing is pending


def test_without_that_a_message_of_the_failed_kernel_is_the_next_ones() -> None:
    """Planted: the machine forgets that a kernel failed."""
    machine = joined()
    with pytest.raises(ValueError, match="complex"):
        machine.run_launch(two_of_which_one_cannot_be, [A, B])
    machine._failed = ""
    machine.engine.run()
    got = machine.run_launch(passing(np.full(2, 7.0)), [A, B])
    assert got.results[B].tolist() == [5.0, 5.0]


def two_of_which_one_cannot_be(pe: Context) -> Running:
    if pe.place == A:
        yield pe.send("E", np.full(2, 5.0))
        yield pe.compute(1e-3)
        yield pe.send("E", np.array([1j]))


@pytest.mark.parametrize("wanted", [None, 3, "E"])
def test_what_is_no_request_is_told_with_its_place(wanted: Any) -> None:
    def kernel(pe: Context) -> Running:
        yield wanted

    with pytest.raises(
        ValueError, match=rf"^{A}: kernel yields {wanted!r} at test_machine.py:\d+; allowed: pe.compute"
    ):
        joined().run_launch(kernel, [A])


def test_a_function_without_yield_is_no_kernel() -> None:
    def plain(pe: Context) -> int:
        return 3

    machine = joined()
    with pytest.raises(
        ValueError, match=r"^launch: plain is no generator, it gave int; allowed: a function with yield$"
    ):
        machine.launch(plain, [A])  # type: ignore[arg-type]
    assert machine.run_launch(passing(1.0), [A, B]).results[B] == 1.0


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_seconds_that_cannot_be_are_refused(seconds: float) -> None:
    def kernel(pe: Context) -> Running:
        yield pe.compute(seconds, "product")

    with pytest.raises(ValueError, match=rf"^{A}: product takes {seconds} s; allowed: finite, at least 0$"):
        joined().run_launch(kernel, [A])
