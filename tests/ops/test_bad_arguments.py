"""Whatever is given to an operator: a result, or one line that names the operator; never another kind of error."""

from __future__ import annotations

import inspect
import math
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from samebits import ops
from samebits.numerics.bits import same_bits
from samebits.ops.arguments import check_tensors, choose_backend


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def ids(*shape: int) -> Tensor:
    return torch.arange(math.prod(shape)).reshape(shape) % 5


# Every operator but attention, whose arguments have tests of their own, with arguments that it takes.
GOOD: dict[str, Callable[[], dict[str, Any]]] = {
    "matmul": lambda: {"a": drawn(3, 16), "b": drawn(16, 4)},
    "linear": lambda: {"x": drawn(3, 16), "weight": drawn(4, 16), "bias": drawn(4)},
    "matmul_accumulate_": lambda: {"accumulator": drawn(3, 4), "a": drawn(3, 16), "b": drawn(16, 4)},
    "rmsnorm": lambda: {"x": drawn(3, 16), "weight": drawn(16), "eps": 1e-6},
    "add_rmsnorm": lambda: {"x": drawn(3, 16), "residual": drawn(3, 16), "weight": drawn(16), "eps": 1e-6},
    "layernorm": lambda: {"x": drawn(3, 16), "weight": drawn(16), "bias": drawn(16), "eps": 1e-5},
    "grouped_matmul": lambda: {"x": drawn(3, 16), "weight": drawn(5, 16, 4), "expert": ids(3)},
    "grouped_matmul_accumulate_": lambda: {
        "accumulator": drawn(5, 16, 4),
        "x": drawn(3, 16),
        "dy": drawn(3, 4),
        "expert": ids(3),
    },
    "rope": lambda: {"x": drawn(3, 2, 16), "positions": ids(3), "theta": 1e4, "layout": "half", "scaling": None},
    "swiglu": lambda: {"gate": drawn(3, 16), "up": drawn(3, 16)},
    "gelu": lambda: {"x": drawn(3, 16), "approximate": "none"},
    "softmax": lambda: {"x": drawn(3, 16), "dim": -1, "dtype": None},
    "log_softmax": lambda: {"x": drawn(3, 16), "dim": -1, "dtype": None},
    "embedding": lambda: {"ids": ids(3), "weight": drawn(8, 16), "padding_idx": 1},
    "embedding_gradient_": lambda: {"accumulator": drawn(8, 16), "ids": ids(3), "dy": drawn(3, 16), "padding_idx": 1},
    "lm_head": lambda: {"hidden": drawn(3, 16), "weight": drawn(8, 16)},
    "logprob_of_logits": lambda: {"logits": drawn(3, 8), "ids": ids(3), "ignore_index": -100},
    "selected_logprob": lambda: {"hidden": drawn(3, 16), "weight": drawn(8, 16), "ids": ids(3), "ignore_index": -100},
    "linear_cross_entropy": lambda: {
        "hidden": drawn(3, 16),
        "weight": drawn(8, 16),
        "targets": ids(3),
        "ignore_index": -100,
        "reduction": "mean",
        "denominator": 2.0,
    },
    "distill_loss": lambda: {
        "student_logits": drawn(3, 16),
        "teacher_logits": drawn(3, 16),
        "targets": ids(3),
        "temperature": 1.0,
        "alpha": 0.5,
        "ignore_index": -100,
        "reduction": "mean",
        "denominator": 2.0,
    },
    "sample": lambda: {
        "logits": drawn(3, 16),
        "seed": 1,
        "requests": ids(3),
        "positions": ids(3),
        "temperature": 1.0,
        "top_k": 2,
        "top_p": 0.9,
    },
    "adamw_": lambda: {
        "param": drawn(4),
        "grad": drawn(4),
        "exp_avg": drawn(4),
        "exp_avg_sq": drawn(4).abs(),
        "step": 1,
        "lr": 1e-3,
        "beta1": 0.9,
        "beta2": 0.99,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "master": None,
    },
    "grad_norm": lambda: {"tensors": [drawn(4), drawn(3)], "error_if_nonfinite": False},
    "clip_grad_norm_": lambda: {"parameters": with_gradients(), "max_norm": 1.0, "error_if_nonfinite": False},
}


def with_gradients() -> list[Tensor]:
    made = [drawn(4).requires_grad_(), drawn(3).requires_grad_()]
    for each in made:
        each.grad = torch.ones_like(each)
    return made


def nested() -> Tensor:
    return torch.nested.nested_tensor([torch.ones(3), torch.ones(16)])


BAD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "an array": lambda: np.ones((3, 16), np.float32),
    "an empty array": lambda: np.ones(0),
    "a list": lambda: [[1.0, 2.0]],
    "an empty list": list,
    "a text": lambda: "x",
    "a mapping": lambda: {"a": 1},
    "an object": object,
    "true": lambda: True,
    "a number": lambda: 3,
    "a negative number": lambda: -7,
    "2^63": lambda: 2**63,
    "-2^63 - 1": lambda: -(2**63) - 1,
    "2^64 + 1": lambda: 2**64 + 1,
    "10^400": lambda: 10**400,
    "NaN": lambda: math.nan,
    "infinity": lambda: math.inf,
    "-infinity": lambda: -math.inf,
    "a fraction": lambda: 1.5,
    "1e308": lambda: 1e308,
    "a complex number": lambda: 1j,
    "a dtype": lambda: torch.int8,
    "bytes": lambda: b"x",
    "0 dimensions": lambda: torch.tensor(1.0),
    "no rows": lambda: drawn(0, 16),
    "no columns": lambda: drawn(3, 0),
    "another shape": lambda: drawn(5, 7),
    "three dimensions": lambda: drawn(2, 3, 16),
    "one row": lambda: drawn(1, 16),
    "integers": lambda: torch.ones(3, 16, dtype=torch.int32),
    "booleans": lambda: torch.ones(3, 16, dtype=torch.bool),
    "halves": lambda: drawn(3, 16).half(),
    "doubles": lambda: drawn(3, 16).double(),
    "complex": lambda: torch.ones(3, 16, dtype=torch.complex64),
    "meta": lambda: torch.ones(3, 16, device="meta"),
    "sparse": lambda: torch.eye(3, 16).to_sparse(),
    "sparse rows": lambda: torch.eye(3, 16).to_sparse_csr(),
    "quantised": lambda: torch.quantize_per_tensor(drawn(3, 16), 0.1, 0, torch.quint8),
    "float8": lambda: drawn(3, 16).to(torch.float8_e4m3fn),
    "nested": nested,
    "ids of int32": lambda: ids(3).int(),
    "ids below": lambda: -ids(3) - 3,
    "ids above": lambda: ids(3) + 2**40,
    "ids of meta": lambda: torch.ones(3, dtype=torch.int64, device="meta"),
    "no ids": lambda: ids(3)[:0],
    "a tensor in a list": lambda: [drawn(3, 16)],
    "arrays in a list": lambda: [np.ones(3)],
    "None in a list": lambda: [None],
}
BACKENDS = (None, "cpu", "reference", "triton", "nowhere", 3, [], "")


def judged(operator: str, arguments: dict[str, Any]) -> str:
    """What is wrong with how the operator takes it; empty where nothing is."""
    try:
        getattr(ops, operator)(**arguments)
    except (ValueError, TypeError) as error:
        said = str(error)
        if "\n" in said or len(said) > 500 or not said.startswith((f"{operator}: ", "clip_grad_norm_: ")):
            return f"{type(error).__name__}: {said}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def cases(operator: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in GOOD[operator]():
        for bad, make in BAD.items():
            yield f"{name} is {bad}", GOOD[operator]() | {name: make()}
    for backend in BACKENDS:
        yield f"backend is {backend!r}", GOOD[operator]() | {"backend": backend}


@pytest.mark.parametrize("operator", sorted(GOOD))
def test_every_argument_may_be_anything(operator: str) -> None:
    assert judged(operator, GOOD[operator]()) == ""
    wrong = {case: found for case, arguments in cases(operator) if (found := judged(operator, arguments))}
    assert not wrong, "\n".join(f"{case}: {found[:200]}" for case, found in wrong.items())


@pytest.mark.parametrize("operator", sorted(GOOD))
def test_two_arguments_at_once(operator: str) -> None:
    chance = random.Random(operator)
    for _ in range(60):
        arguments = GOOD[operator]()
        chosen = {name: chance.choice(sorted(BAD)) for name in chance.sample(sorted(arguments), min(2, len(arguments)))}
        found = judged(operator, arguments | {name: BAD[bad]() for name, bad in chosen.items()})
        assert not found, f"{chosen}: {found}"


def test_every_operator_is_here() -> None:
    apart = {"AdamW", "DenseCache", "PagedCache", "RopeScaling", "attention", "attention_with_lse"}
    assert set(GOOD) == set(ops.__all__) - apart


def test_a_check_that_lets_numpy_through_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the first thing that every operator asks, without the question what it was given."""

    def unasked(operator: str, tensor: Any, backend: str | None) -> str:
        return {"cpu": "cpu"}[tensor.device.type] if backend is None else backend

    monkeypatch.setattr(sys.modules["samebits.ops.matmul"], "choose_backend", unasked)
    # Whatever stands around it: with a build of torch for CUDA that is one function more.
    monkeypatch.setattr(ops, "matmul", inspect.unwrap(ops.matmul))
    assert judged("matmul", {"a": np.ones((3, 16)), "b": drawn(16, 4)})


def test_negative_views_keep_their_sign() -> None:
    """The imaginary part of a conjugate is stored without its sign: the values count, not the memory."""
    whole = torch.view_as_complex(drawn(3, 16, 2))
    x = whole.conj().imag
    assert x.is_neg()
    assert same_bits(ops.matmul(x, drawn(16, 4)), ops.matmul(x.resolve_neg(), drawn(16, 4)))
    assert same_bits(ops.gelu(x), ops.gelu(x.resolve_neg()))
    assert same_bits(ops.softmax(x), ops.softmax(x.resolve_neg()))


def test_the_lines() -> None:
    with pytest.raises(TypeError, match=r"^matmul: a tensor is needed, got a ndarray; allowed: a torch\.Tensor$"):
        choose_backend("matmul", np.ones(3), None)
    with pytest.raises(TypeError, match=r"^matmul: b is a list; allowed: a torch\.Tensor$"):
        check_tensors("matmul", "cpu", {"a": drawn(3), "b": [1.0]})
    with pytest.raises(
        ValueError, match=r"^linear_cross_entropy: ignore_index is 9223372036854775808; allowed: a whole number"
    ):
        ops.linear_cross_entropy(**GOOD["linear_cross_entropy"]() | {"ignore_index": 2**63})
