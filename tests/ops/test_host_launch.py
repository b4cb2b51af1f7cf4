"""The host's path in C++ of benchmarks/host_launch hands to the driver what Python's hands to it; no GPU is needed.

A stub stands in for the driver, CPU tensors for a GPU's. Triton's own launcher in C is what the one in C++ is compared
with; on a GPU benchmarks/gpu_host_launch.py compares bits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

import triton
from tests.repository.documents import PROJECT

from samebits import ops
from samebits.native.launch_numbers import launching
from samebits.ops import registering
from samebits.ops._triton.launch import launch_count

Made = tuple[Tensor, Tensor, Tensor | None]
BFLOAT16 = torch.bfloat16


@pytest.fixture(scope="module")
def stub() -> Iterator[Any]:
    sys.path.insert(0, str(PROJECT / "benchmarks"))
    try:
        from host_launch.stub import standing_in

        with standing_in() as found, torch.no_grad():
            yield found
    finally:
        sys.path.remove(str(PROJECT / "benchmarks"))


@pytest.fixture(autouse=True)
def attached(stub: Any) -> None:
    """No launch is kept, no fault is planted."""
    from host_launch.attaching import attach

    attach(stub.module, lambda _: stub.stream)
    stub.module.plant()


def random(*shape: int, dtype: torch.dtype = BFLOAT16) -> Tensor:
    return torch.randn(shape).to(dtype)


def made(rows: int, k: int, n: int, *, bias: bool = False, dtype: torch.dtype = BFLOAT16) -> Made:
    return random(rows, k, dtype=dtype), random(n, k, dtype=dtype), random(n, dtype=dtype) if bias else None


def launched(stub: Any, call: Callable[..., Tensor], given: Made) -> tuple[dict[str, Any], Tensor]:
    """What the driver was asked for, and the result, by the second of two calls."""
    call(*given)
    stub.expect_last()
    out = call(*given)
    return stub.recorded(*given, out), out


def launched_by_cpp(stub: Any, given: Made) -> tuple[dict[str, Any], Tensor]:
    before, _ = stub.module.counted()
    found = launched(stub, stub.module.linear, given)
    assert stub.module.counted()[0] > before, "handed to Python"
    return found


def same(stub: Any, given: Made) -> bool:
    """Whether both hand over the same, and make results that look the same."""
    expected, by_python = launched(stub, ops.linear, given)
    found, by_cpp = launched_by_cpp(stub, given)
    looks = [(each.shape, each.stride(), each.dtype, each.requires_grad) for each in (by_python, by_cpp)]
    return expected == found and looks[0] == looks[1]


def columns_of_wider(given: Made) -> Made:
    return given[0].repeat(1, 2)[:, : given[0].shape[1]], *given[1:]


def off_by_one(given: Made) -> Made:
    x, *others = given
    return torch.cat([x.flatten(), x.flatten()])[1 : x.numel() + 1].view(x.shape), *others


CASES: dict[str, Callable[[], Made]] = {
    "few rows": lambda: made(16, 64, 96),
    "one row": lambda: made(1, 64, 96),
    "columns of a wider x": lambda: columns_of_wider(made(16, 64, 96)),
    "three axes": lambda: (random(2, 8, 64), *made(16, 64, 96)[1:]),
    "one axis": lambda: (random(64), *made(1, 64, 96)[1:]),
    "a parameter": lambda: (random(16, 64), nn.Parameter(random(96, 64)), None),
    "many rows and a bias": lambda: made(200, 64, 256, bias=True),
    "no multiple of 16 bytes": lambda: off_by_one(made(16, 64, 96)),
    "float32": lambda: made(16, 64, 96, dtype=torch.float32),
}


@pytest.mark.parametrize("words", CASES)
def test_a_launch_is_pythons(stub: Any, words: str) -> None:
    kept = []
    for _ in range(2):  # at other addresses, too
        kept.append(CASES[words]())
        assert same(stub, kept[-1])
    assert same(stub, kept[0])


def test_a_launch_prepared_for_one_tensor_as_both_operands(stub: Any) -> None:
    square = random(96, 96)
    assert same(stub, (square, square, None))
    assert same(stub, made(96, 96, 96))


def layouts_at_one_address() -> list[Made]:
    memory = random(16 * 128)
    return [(memory[: 16 * 64].view(16, 64), random(96, 64), None), (memory.view(16, 128), random(96, 128), None)]


def test_a_descriptor_reused_for_another_layout_would_be_seen(stub: Any) -> None:
    cases = layouts_at_one_address()
    assert all(same(stub, each) for each in cases * 2)
    stub.module.plant("descriptor by address")
    assert not all(same(stub, each) for each in layouts_at_one_address() * 2)


def test_a_launch_kept_by_its_sizes_alone_would_be_seen(stub: Any) -> None:
    given = made(16, 64, 96)
    wider = columns_of_wider(given)
    assert same(stub, given)
    assert same(stub, wider)
    stub.module.forget()
    stub.module.plant("launch by sizes")
    assert same(stub, given)
    assert not same(stub, wider)


def test_swapped_sizes_would_be_seen(stub: Any) -> None:
    from host_launch.attaching import attach
    from host_launch.preparing import prepared

    def swapped(*given: Any) -> Any:
        *heads, parameters = prepared(*given)  # type: ignore[misc]
        m, n = len(parameters) - 6, len(parameters) - 5
        order = [*parameters[:m], parameters[n], parameters[m], *parameters[n + 1 :]]
        return (*heads, tuple(order))

    attach(stub.module, lambda _: stub.stream, prepare=swapped)
    assert not same(stub, made(16, 64, 96))


def test_the_current_stream_and_a_wrong_one(stub: Any) -> None:
    from host_launch.attaching import attach

    given = made(16, 64, 96)
    with patch.object(stub, "stream", 123):
        assert same(stub, given)
        assert launched_by_cpp(stub, given)[0]["stream"] == 123
        attach(stub.module, lambda _: 0)
        assert not same(stub, given)


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Function(TorchFunctionMode):
    pass


class Subclass(torch.Tensor):
    pass


@contextmanager
def watched() -> Iterator[None]:
    registering.observe(lambda name, run, arguments, flops: run(*arguments))
    try:
        yield
    finally:
        registering.observe(None)


@contextmanager
def hooked() -> Iterator[None]:
    hooks = triton.knobs.runtime.launch_enter_hook
    hooks.add(print)
    try:
        yield
    finally:
        hooks.remove(print)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "dispatch mode": Dispatch,
    "function mode": Function,
    "forward AD": forward_ad.dual_level,
    "profiler": partial(torch.autograd.profiler.profile, use_kineto=False),
    "other keys": lambda: torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.PythonDispatcher),
    "compiling": lambda: patch.object(torch.compiler, "_is_compiling_flag", True),
    "observed": watched,
    "forced launch": lambda: launching(launch=None),
    "launch hook": hooked,
}


def seen_within(stub: Any, words: str, given: Made) -> list[str | None]:
    """The answers within a mode: who is asked, and a mode that no `with` opens."""
    answers: list[str | None] = []

    def ask(*_: Tensor) -> Tensor:
        answers.append(stub.module.refusal(*given))
        return _[0].sum()

    with torch.enable_grad() if words == "functorch" else torch.no_grad():
        if words == "functorch":
            torch.func.grad(ask)(torch.ones(2))
        elif words == "tracing":
            torch.jit.trace(ask, (torch.ones(2),), check_trace=False)
        else:
            with MODES[words]():
                answers.append(stub.module.refusal(*given))
    return answers


@pytest.mark.parametrize("words", [*MODES, "functorch", "tracing"])
def test_every_mode_is_seen(stub: Any, words: str) -> None:
    given = made(16, 64, 96)
    assert stub.module.refusal(*given) is None
    assert seen_within(stub, words, given) == [words]
    stub.module.plant(words)
    assert seen_within(stub, words, given) != [words]
    assert stub.module.refusal(*given) is None


PARTICULAR: dict[str, Callable[[Tensor], Tensor]] = {
    "kind": lambda x: x.as_subclass(Subclass),
    "keys": torch._neg_view,
    "gradient": lambda x: x.clone().requires_grad_(),
}


@pytest.mark.parametrize("words", PARTICULAR)
@pytest.mark.parametrize("place", range(3))
def test_a_particular_tensor_is_seen(stub: Any, words: str, place: int) -> None:
    given: list[Any] = list(made(16, 64, 96, bias=True))
    with torch.enable_grad():
        assert stub.module.refusal(*given) is None
        given[place] = PARTICULAR[words](given[place])
        assert stub.module.refusal(*given) == words
    assert stub.module.refusal(*given) == (None if words == "gradient" else words)


def test_what_is_seen_is_handed_to_python(stub: Any) -> None:
    from host_launch.attaching import attach

    given = made(16, 64, 96)
    assert same(stub, given)
    attach(stub.module, lambda _: stub.stream, otherwise=lambda *given, **named: (given, named))
    with Dispatch():
        assert stub.module.linear(*given[:2], bias=None) == (given[:2], {"bias": None})
    assert stub.module.linear(*given, backend="triton") == (given, {"backend": "triton"})


def test_a_thread_without_a_context_is_left_to_python(stub: Any) -> None:
    given = made(16, 64, 96)
    assert same(stub, given)
    launched, by_python = stub.module.counted()
    stub.library.stub_contexts(0)
    try:
        stub.module.linear(*given)
    finally:
        stub.library.stub_contexts(1)
    assert stub.module.counted() == (launched, by_python + 1)


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
}


@pytest.mark.parametrize("words", BAD)
def test_bad_arguments_get_pythons_line(stub: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError)) as expected:
        ops.linear(*BAD[words])
    with pytest.raises(expected.type) as found:
        stub.module.linear(*BAD[words])
    assert str(found.value) == str(expected.value)


def test_empty_sizes_launch_nothing(stub: Any) -> None:
    for rows, k, n in ((0, 8, 8), (4, 0, 8), (4, 8, 0)):
        before = stub.launches()
        assert torch.equal(*(call(*made(rows, k, n)) for call in (stub.module.linear, ops.linear)))
        assert stub.launches() == before


def test_too_many_sizes_are_forgotten(stub: Any) -> None:
    from host_launch.attaching import attach

    rows, weight = random(5000, 8), random(8, 8)
    assert same(stub, (rows[:16], weight, None))
    attach(stub.module, lambda _: stub.stream, otherwise=lambda *_: None, prepare=lambda *_: None)
    sizes = set()
    for count in range(1, 5001):
        assert stub.module.linear(rows[:count], weight) is None
        sizes.add(stub.module.kept())
    assert max(sizes) == 4096
    attach(stub.module, lambda _: stub.stream)
    assert same(stub, (rows[:16], weight, None))


def test_launches_are_counted_and_threads_do_not_meet(stub: Any) -> None:
    cases = [made(16, 64, 96) for _ in range(8)]
    for each in cases:
        stub.module.linear(*each)
    before, counted = stub.module.counted()[0], launch_count("matmul_described")

    def many(given: Made) -> None:
        for _ in range(200):
            stub.module.linear(*given)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(many, cases))
    assert stub.module.counted()[0] - before == 8 * 200
    assert launch_count("matmul_described") - counted == 8 * 200


def test_inference_tensors(stub: Any) -> None:
    with torch.inference_mode():
        given = made(16, 64, 96)
        assert same(stub, given)
        assert stub.module.linear(*given).is_inference()


def test_the_real_build_takes_no_cpu_tensor_and_needs_no_driver() -> None:
    from host_launch import building
    from host_launch.attaching import attach

    module = building.module()
    attach(module, lambda _: 0, otherwise=lambda *given, **named: "by Python")
    assert module.refusal(*made(16, 64, 96)) == "keys"
    assert module.linear(*made(16, 64, 96)) == "by Python"
    assert not hasattr(module, "plant")
    assert not hasattr(module, "use_driver")
