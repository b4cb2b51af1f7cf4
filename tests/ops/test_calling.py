"""An operator goes around torch's dispatcher only where nobody listens; either way the bits are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from samebits import ops
from samebits.ops import registering

X, WEIGHT = torch.randn(5, 48), torch.randn(7, 48)


class Listener(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        self.heard.append(str(function))
        return function(*arguments, **(options or {}))


def through_the_dispatcher() -> Tensor:
    y: Tensor = torch.ops.samebits.gemm(X, WEIGHT.T, None, "cpu")
    return y


def test_with_and_without_the_dispatcher_the_bits_are_the_same() -> None:
    assert torch.equal(ops.linear(X, WEIGHT).view(torch.int32), through_the_dispatcher().view(torch.int32))


def test_without_a_listener_the_dispatcher_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: an implementation that is called directly shows itself."""
    monkeypatch.setitem(registering._runs, "gemm", lambda *arguments: "called directly")
    assert registering.call("gemm", X, WEIGHT.T, None, "cpu") == "called directly"


def test_a_mode_hears_the_operator() -> None:
    with Listener() as listener:
        ops.linear(X, WEIGHT)
    assert "samebits.gemm.default" in listener.heard


def test_a_gradient_goes_through() -> None:
    weight = WEIGHT.clone().requires_grad_()
    ops.linear(X, weight).sum().backward()
    assert weight.grad is not None and bool((weight.grad != 0).any())
    with torch.no_grad():
        assert not ops.linear(X, weight).requires_grad


def test_a_profiler_sees_the_operator() -> None:
    with torch.profiler.profile() as profile:
        ops.linear(X, WEIGHT)
    assert "samebits::gemm" in {event.key for event in profile.key_averages()}


class Named(Tensor):
    pass


def test_a_transform_takes_row_by_row() -> None:
    rows = torch.func.vmap(lambda row: registering.call("gemm", row[None], WEIGHT.T, None, "cpu"))(X)
    assert torch.equal(rows[:, 0].view(torch.int32), through_the_dispatcher().view(torch.int32))


def test_forward_mode_has_no_rule_and_is_refused() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X.clone().requires_grad_(), torch.ones_like(X))
        with pytest.raises((RuntimeError, NotImplementedError)):
            ops.linear(dual, WEIGHT)


def test_another_kind_of_tensor_needs_the_dispatcher() -> None:
    assert registering._listened_to((X.as_subclass(Named),))
    assert not registering._listened_to((X, torch.nn.Parameter(WEIGHT, requires_grad=False), None, "cpu"))
