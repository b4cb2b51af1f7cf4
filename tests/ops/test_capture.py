"""A captured function, replayed, gives what the function would give now: kernels and torch's own operations alike."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from samebits import native, ops
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import same_bits
from samebits.ops._cpu import launches
from samebits.ops.capture import Arena, Capture, _make_again, capture

WEIGHT, NORM = torch.randn(24, 32, generator=torch.Generator().manual_seed(1)), torch.ones(32)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def kernels(found: Capture[Tensor]) -> list[str]:
    """The kernels that a replay calls."""
    return [call.kernel[0] for call in found._calls if call.function is None]


def branchy(x: Tensor) -> Tensor:
    """Kernels, views, copies, constants, memory that is filled first, and results that only a check reads."""
    if not bool(x.isfinite().all()):
        raise ValueError("not finite")
    y = ops.linear(ops.rmsnorm(x, NORM), WEIGHT)
    left, right = y.chunk(2, dim=-1)
    both = torch.cat((ops.swiglu(left, right), left * 2), -1) + torch.tensor([1.0, 2.0] * 12)
    total = torch.zeros(24, 24)
    ops.matmul_accumulate_(total, both.T, both)
    return total.t().contiguous()


def test_a_replay_is_the_function_on_what_its_inputs_hold_now() -> None:
    x = drawn(5, 32)
    found = capture(lambda: branchy(x))
    assert same_bits(found.returned, branchy(x))
    for seed in range(1, 6):
        x.copy_(drawn(5, 32, seed=seed))
        assert same_bits(found.replay(), branchy(x))


def test_what_only_a_check_reads_is_not_made_again() -> None:
    """The ids of the first run are in range: whether later ones are is for the caller to know."""
    ids = torch.tensor([1, 2, 3])
    found = capture(lambda: ops.embedding(ids, WEIGHT))
    assert kernels(found) == ["embedding_forward"]
    assert not any(call.function is _make_again for call in found._calls)
    with pytest.raises(ValueError, match="allowed: 0 to 23"):
        capture(lambda: ops.embedding(ids + 40, WEIGHT))


def test_an_operation_that_is_taken_for_a_check_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: nothing that torch computed is made again."""
    x = drawn(5, 32)
    monkeypatch.setattr("samebits.ops.capture._is_read", lambda *_: False)
    found = capture(lambda: branchy(x))
    x.copy_(drawn(5, 32, seed=1))
    assert not same_bits(found.replay(), branchy(x))


def test_filled_memory_is_filled_again() -> None:
    """A kernel adds to it; without filling, the second run would go on from the first."""
    x = drawn(3, 8)

    def product() -> Tensor:
        return ops.matmul_accumulate_(torch.zeros(8, 8), x.T, x)

    found = capture(product)
    assert same_bits(found.replay(), product()) and same_bits(found.replay(), product())


def test_memory_between_kernels_is_used_again() -> None:
    x, arena = drawn(4, 32), Arena()

    def deep(layers: int) -> Tensor:
        y = x
        for _ in range(layers):
            y = ops.rmsnorm(y, NORM)
        return y

    capture(lambda: deep(3), arena)
    few = arena.bytes
    found = capture(lambda: deep(40), arena)
    assert arena.bytes <= 2 * few and same_bits(found.replay(), deep(40))


def test_the_memory_of_a_result_is_nobody_elses() -> None:
    x, arena = drawn(4, 32), Arena()
    first = capture(lambda: ops.rmsnorm(x, NORM), arena)
    second = capture(lambda: ops.rmsnorm(x, NORM * 2), arena)
    assert not same_bits(first.replay(), second.replay()) and same_bits(first.returned, ops.rmsnorm(x, NORM))


def test_launch_numbers_are_those_of_the_replay() -> None:
    x = drawn(5, 32)
    found = capture(lambda: ops.rmsnorm(x, NORM))
    for name in native.instruction_sets():
        before = launches()["rmsnorm_forward", name]
        with launching(instruction_set=name, threads=1):
            assert same_bits(found.replay(), ops.rmsnorm(x, NORM))
        assert launches()["rmsnorm_forward", name] == before + 2


def test_kernels_of_another_thread_are_not_captured() -> None:
    x = drawn(5, 32)

    def with_company() -> Tensor:
        other = threading.Thread(target=lambda: ops.swiglu(x, x))
        other.start()
        other.join()
        return ops.rmsnorm(x, NORM)  # type: ignore[return-value]

    assert kernels(capture(with_company)) == ["rmsnorm_forward"]


def test_a_failed_kernel_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn(5, 32)
    found = capture(lambda: ops.rmsnorm(x, NORM))
    monkeypatch.setattr(native, "function", lambda *_: lambda *_: 1)
    with pytest.raises(native.NativeError, match="rmsnorm_forward: "):
        found.replay()


def test_a_constant_that_is_written_to_is_refused() -> None:
    """It would hold other numbers in the second run."""
    with pytest.raises(ValueError, match=r"capture: aten\.add_\.Tensor writes into a constant; allowed: into memory"):
        capture(lambda: torch.tensor([1.0, 2.0]).add_(drawn(2)))
