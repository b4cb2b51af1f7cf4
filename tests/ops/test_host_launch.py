"""Calls launched in C++ hand to the driver what Python's function hands to it; no GPU is needed.

A stub stands in for the driver, CPU tensors for a GPU's. What is launched for which call, and that no question is deaf,
is judged by the contract `host_launch`; here is what a call does besides: threads, errors, what is kept, what is
seen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from sys import getrefcount
from typing import Any
from unittest.mock import patch
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

import triton

from samebits import ops
from samebits.ops._triton.launch import launch_count
from samebits.ops.contracts.host_launch import building, recording
from samebits.ops.contracts.host_launch.attaching import attach, calls_of, check_layout
from samebits.ops.contracts.host_launch.cases import CASES, Given, drawn
from samebits.ops.contracts.host_launch.compared import NEEDED, differing_cases, is_pythons, last_launch
from samebits.ops.contracts.host_launch.modes import Dispatch
from samebits.ops.contracts.host_launch.stub import Stub, standing_in
from samebits.ops.matmul import linear
from samebits.ops.rmsnorm import add_rmsnorm, rmsnorm
from samebits.ops.softmax import softmax

GENERATOR = torch.Generator().manual_seed(3)


@pytest.fixture(scope="module")
def stub() -> Iterator[Stub]:
    with standing_in() as found, torch.no_grad():
        yield found


@pytest.fixture(autouse=True)
def poisoned_memory() -> None:
    """Nothing is filled here: a call that fills memory does more than launch."""


@pytest.fixture(autouse=True)
def attached(stub: Stub) -> None:
    """No fault is planted."""
    attach(stub.module, lambda _: stub.stream)
    stub.module.plant()
    stub.library.stub_answers(0)


def operands(rows: int = 16, k: int = 64, n: int = 96) -> tuple[Tensor, Tensor]:
    return drawn(GENERATOR, rows, k), drawn(GENERATOR, n, k)


def launched(stub: Stub, function: Callable[..., Any], *given: Any) -> Any:
    """The function's calls, of which those like this one are launched in C++ from now on."""
    call = stub.calls_of(function)
    for _ in range(NEEDED):
        call(*given)
    assert call.counted() == (1, NEEDED - 1)
    return call


def test_every_call_is_pythons(stub: Stub) -> None:
    assert list(differing_cases(stub)) == []


def test_a_fault_is_noticed(stub: Stub) -> None:
    """Planted: a launch is kept whatever the strides are."""
    stub.module.plant("without strides")
    assert any(each.startswith("columns of a wider x") for each in differing_cases(stub))


def test_the_first_call_of_a_kind_is_pythons_and_the_second_is_recorded(stub: Stub) -> None:
    call, seen = stub.calls_of(linear), []

    def watched(*given: Any) -> Any:
        seen.append(call.counted())
        return recording.record(*given)

    attach(stub.module, lambda _: stub.stream, record=watched)
    given = operands()
    for expected in ((0, 1), (0, 2), (1, 2), (2, 2)):
        call(*given)
        assert call.counted() == expected
    assert seen == [(0, 2)] and call.kept() == 1


def test_what_somebody_listens_to_is_handed_to_python_as_it_was_given(stub: Stub) -> None:
    def told(x: Any, weight: Any, bias: Any = None) -> Any:
        return x, weight, bias

    given = operands()
    with Dispatch():
        assert stub.calls_of(told)(*given, bias=None) == (*given, None)
        assert stub.calls_of(told)(weight=1, x=given[0]) == (given[0], 1, None)


def test_the_stream_that_is_current(stub: Stub) -> None:
    call, given = launched(stub, linear, *operands()), Given(operands())
    with patch.object(stub, "stream", 123):
        assert last_launch(stub, call, given)["stream"] == 123
    assert last_launch(stub, call, given)["stream"] == stub.stream
    assert call.counted()[1] == NEEDED - 1


def test_a_thread_without_a_context_is_left_to_python(stub: Stub) -> None:
    given = operands()
    call = launched(stub, linear, *given)
    before = call.counted()
    stub.library.stub_contexts(0)
    try:
        call(*given)
    finally:
        stub.library.stub_contexts(1)
    assert call.counted() == (before[0], before[1] + 1)


def test_an_error_of_the_driver_is_raised_in_tritons_words(stub: Stub) -> None:
    given = operands()
    call = launched(stub, linear, *given)
    stub.library.stub_answers(700)
    with pytest.raises(RuntimeError, match=r"^Triton Error \[CUDA\]: no launch: an error of the stub$"):
        call(*given)
    stub.library.stub_answers(0)
    assert call(*given).shape == (16, 96) and call.counted() == (2, NEEDED - 1)


BAD: dict[str, tuple[Any, ...]] = {
    "sizes": (torch.ones(4, 8), torch.ones(6, 7)),
    "dtypes": (torch.ones(4, 8), torch.ones(6, 8).half()),
    "bias": (torch.ones(4, 8), torch.ones(6, 8), torch.ones(5)),
    "kind": (torch.ones(4, 8), None),
    "float64": (torch.ones(4, 8).double(), torch.ones(6, 8).double()),
    "axes": (torch.ones(4, 8), torch.ones(8)),
    "no axis": (torch.ones(()), torch.ones(6, 8)),
    "sparse": (torch.ones(4, 8).to_sparse(), torch.ones(6, 8)),
    "too few": (torch.ones(4, 8),),
    "too many": tuple(torch.ones(4, 4) for _ in range(9)),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_arguments_get_pythons_line(stub: Stub, words: str) -> None:
    call = stub.calls_of(linear)
    with pytest.raises((TypeError, ValueError)) as expected:
        linear(*BAD[words])
    for _ in range(NEEDED):
        with pytest.raises(expected.type) as found:
            call(*BAD[words])
        assert str(found.value) == str(expected.value)
    assert call.kept() == 0


def test_empty_sizes_launch_nothing(stub: Stub) -> None:
    for rows, k, n in ((0, 8, 8), (4, 0, 8), (4, 8, 0)):
        call, before = stub.calls_of(linear), stub.launches()
        given = operands(rows, k, n)
        for _ in range(NEEDED):
            assert torch.equal(call(*given), linear(*given))
        assert stub.launches() == before and call.counted()[0] == 0


def test_a_tensor_in_the_middle_of_its_storage(stub: Stub) -> None:
    whole, weight = operands(rows=64)
    call = launched(stub, linear, whole[:16], weight)
    stub.expect_last()
    call(whole[32:48], weight)
    parameters = stub.recorded({whole[32:48].data_ptr(): "rows"})["parameters"]
    assert "rows" in [each["address"] for each in parameters if isinstance(each, dict)]


def test_three_launches_with_memory_between_them(stub: Stub) -> None:
    """Rows that several programs share."""
    given, call = Given((drawn(GENERATOR, 2, 20_000),)), stub.calls_of(softmax)
    assert is_pythons(stub, softmax, call, given)
    assert last_launch(stub, call, given)["launches"] == 3 and call.counted() == (2, NEEDED - 1)


def test_too_many_kinds_of_calls_are_forgotten(stub: Stub) -> None:
    rows, weight, sizes = torch.ones(5000, 8), torch.ones(8, 8), set()
    call = stub.calls_of(lambda x, weight: None)
    for count in range(1, 5001):
        assert call(rows[:count], weight) is None
        sizes.add(call.kept())
    assert max(sizes) == 4096
    call.forget()
    assert (call.kept(), call.counted()) == (0, (0, 0))


def test_kept_objects_are_given_back(stub: Stub) -> None:
    """A name that is a word of what is kept lives as long as that, and no longer."""
    name, x = "".join(["t", "anh"]), torch.ones(16)
    call, before = stub.calls_of(lambda x, approximate: None), getrefcount(name)
    call(x, name)
    assert getrefcount(name) == before + 1
    call.forget()
    assert getrefcount(name) == before


def test_no_call_leaks(stub: Stub) -> None:
    """Arguments have as many owners after a hundred calls as before, results none."""
    x, weight = operands()
    given = CASES["norms of sums"].calls()[0].positional
    one, two = launched(stub, linear, x, weight), launched(stub, add_rmsnorm, *given)
    named = {"x": x, "weight": weight}
    for _ in range(NEEDED):
        one(**named)
    before = [getrefcount(each) for each in (x, weight, *given)]
    for _ in range(100):
        results = [one(x, weight), one(**named), *two(*given)]
        seen = [ref(each) for each in results]
        results.clear()
        assert [each() for each in seen] == [None] * 4
        with pytest.raises(ValueError):
            one(x, weight[:, :8])
    assert [getrefcount(each) for each in (x, weight, *given)] == before
    assert one.counted()[0] >= 200 and two.counted()[0] >= 100


def test_launches_are_counted_and_threads_do_not_meet(stub: Stub) -> None:
    cases = [operands() for _ in range(8)]
    call = launched(stub, linear, *cases[0])
    before, counted = call.counted()[0], launch_count("matmul_described")

    def many(given: tuple[Tensor, Tensor]) -> None:
        with torch.no_grad():
            for _ in range(200):
                call(*given)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(many, cases))
    assert call.counted()[0] - before == 8 * 200
    assert launch_count("matmul_described") - counted == 8 * 200


def test_what_is_launched_may_be_forgotten_meanwhile(stub: Stub) -> None:
    given = operands()
    call, done = launched(stub, linear, *given), threading.Event()

    def many() -> int:
        count = 0
        with torch.no_grad():
            while not done.is_set():
                count += call(*given).shape == (16, 96)
        return count

    with ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(many) for _ in range(3)]
        for _ in range(300):
            call.forget()
            call(*given)
        done.set()
    assert all(each.result() > 0 for each in calls)


def test_one_recording_at_a_time(stub: Stub) -> None:
    """While another thread records, a call is Python's, and is recorded the next time."""
    given = operands()
    call = stub.calls_of(linear)
    call(*given)
    with recording._recording:
        call(*given)
    assert call.refusal(*given) is None
    call(*given)
    call(*given)
    assert call.counted() == (1, 3)


def test_a_listener_is_gone_after_a_recording(stub: Stub) -> None:
    launched(stub, linear, *operands())
    assert triton.knobs.runtime.launch_enter_hook.calls == []


def test_a_result_in_an_arguments_memory_keeps_it(stub: Stub) -> None:
    """While a call is recorded, arguments stand for others: none of these may be handed out."""
    x = torch.ones(16, 64)
    call = stub.calls_of(lambda x: x[1:])
    for _ in range(NEEDED):
        out = call(x)
        assert out.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert call.counted()[0] == 0 and "does more than launch" not in call.refusal(x)


def test_inference_tensors(stub: Stub) -> None:
    """A result is what Python's function makes in the same mode, whichever was current when it was recorded."""
    given = Given(operands())
    call = stub.calls_of(linear)
    with torch.inference_mode():
        assert is_pythons(stub, linear, call, given)
        assert call(*given.positional).is_inference() and linear(*given.positional).is_inference()
        made = Given(operands())
        assert is_pythons(stub, linear, call, made)
    assert not call(*given.positional).is_inference()
    assert not call(*made.positional).is_inference() and call.counted()[0] > 4


def test_parameters_under_no_grad(stub: Stub) -> None:
    x, weight = operands()
    call = launched(stub, linear, x, nn.Parameter(weight))
    out = call(x, nn.Parameter(weight))
    assert type(out) is Tensor and not out.requires_grad and out._version == 0
    with torch.enable_grad():
        assert call.refusal(x, nn.Parameter(weight)) == "gradient"
        assert call.refusal(x, weight) is None


def test_autocast_changes_nothing(stub: Stub) -> None:
    x, weight, gain = drawn(GENERATOR, 16, 64), drawn(GENERATOR, 96, 64), drawn(GENERATOR, 64)
    for function, given in ((linear, (x, weight)), (rmsnorm, (x.float(), gain.float()))):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert is_pythons(stub, function, stub.calls_of(function), Given(given))


def test_new_memory_is_filled_where_torch_fills_it(stub: Stub) -> None:
    given = operands()
    call = launched(stub, linear, *given)
    torch.use_deterministic_algorithms(True)
    try:
        out = call(*given)
    finally:
        torch.use_deterministic_algorithms(False)
    assert out.isnan().all() and call.counted()[0] == 2


def test_one_tensor_as_both_operands_after_two(stub: Stub) -> None:
    call = launched(stub, linear, drawn(GENERATOR, 96, 96), drawn(GENERATOR, 96, 96))
    square = drawn(GENERATOR, 96, 96)
    assert is_pythons(stub, linear, call, Given((square, square)))


def test_no_case_is_recorded_in_a_captured_graph(stub: Stub) -> None:
    given = CASES["norms of rows"].calls()[0].positional
    call = stub.calls_of(rmsnorm)
    with patch.object(torch.cuda, "is_current_stream_capturing", lambda: True):
        for _ in range(NEEDED):
            call(*given)
    assert call.counted() == (0, NEEDED)
    call(*given)
    call(*given)
    assert call.counted() == (1, NEEDED + 1)


def test_the_real_build_takes_no_cpu_tensor_and_needs_no_driver() -> None:
    module = building.module()
    attach(module, lambda _: 0)
    call = calls_of(module, lambda x, weight: "by Python")
    assert call.refusal(*operands()) == "keys"
    assert call(*operands()) == "by Python"
    assert not hasattr(module, "plant") and not hasattr(module, "use_driver")


def test_a_torch_that_lays_out_tensors_otherwise_is_refused() -> None:
    class Other:
        def implementation(self, tensor: Tensor) -> int:
            return id(tensor)

    check_layout(building.module())
    with pytest.raises(RuntimeError, match=r"lays out tensors in a way that is not known here"):
        check_layout(Other())


def test_functions_of_parameters_without_names_are_refused(stub: Stub) -> None:
    with pytest.raises(ValueError, match="allowed: parameters with names"):
        stub.calls_of(lambda *rows: rows)
    with pytest.raises(RuntimeError, match="a function of too many parameters"):
        stub.calls_of(lambda a, b, c, d, e, f, g, h, i, j, k, m, n: None)
    assert stub.calls_of(ops.linear).counted() == (0, 0)
