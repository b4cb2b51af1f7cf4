"""Calls whose launches in C++ are compared with Python's: layouts, alignments, dtypes and numbers that choose a launch.

A case is a list of calls of one function, made in turns: what is kept of one must not be taken for another's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn

from samebits.ops.embedding import embedding
from samebits.ops.gelu import gelu
from samebits.ops.layernorm import layernorm
from samebits.ops.matmul import linear, matmul
from samebits.ops.rmsnorm import add_rmsnorm, rmsnorm
from samebits.ops.rope import rope
from samebits.ops.softmax import log_softmax, softmax
from samebits.ops.swiglu import swiglu

SEED: Final = 5


@dataclass(frozen=True, slots=True)
class Given:
    """What a function is called with."""

    positional: tuple[Any, ...]
    named: Mapping[str, Any] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        values = {**{f"argument {place}": each for place, each in enumerate(self.positional)}, **self.named}
        return {name: each for name, each in values.items() if isinstance(each, Tensor)}

    def moved(self, device: str) -> Given:
        """The same numbers in the same layout on another device; tensors that share memory share it there."""
        storages: dict[int, Tensor] = {}

        def there(each: Any) -> Any:
            if not isinstance(each, Tensor):
                return each
            storage = each.untyped_storage()
            whole = torch.empty(0, dtype=each.dtype).set_(storage)
            base = storages.setdefault(storage.data_ptr(), whole.detach().to(device))
            moved = base.as_strided(each.shape, each.stride(), each.storage_offset())
            return nn.Parameter(moved) if isinstance(each, nn.Parameter) else moved

        return Given(tuple(map(there, self.positional)), {name: there(each) for name, each in self.named.items()})


Make = Callable[[torch.Generator], Sequence[Given]]


@dataclass(frozen=True, slots=True)
class Case:
    """Calls of one function."""

    function: Callable[..., Any]
    make: Make

    def calls(self, seed: int = SEED) -> Sequence[Given]:
        return self.make(torch.Generator().manual_seed(seed))


def drawn(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16, more: tuple[Any, ...] = ()) -> Make:
    """One call with contiguous tensors of these shapes, then other arguments."""

    def make(generator: torch.Generator) -> list[Given]:
        return [Given((*(drawn(generator, *each, dtype=dtype) for each in shapes), *more))]

    return make


def named(make: Make, **values: Any) -> Make:
    """The same calls with these arguments by name."""
    return lambda generator: [Given(each.positional, values) for each in make(generator)]


def in_turns(*makes: Make) -> Make:
    return lambda generator: [each for make in makes for each in make(generator)]


def _first(change: Callable[[Tensor], Tensor], make: Make) -> Make:
    """Calls with their first tensor changed."""

    def made(generator: torch.Generator) -> list[Given]:
        found = make(generator)
        return [Given((change(each.positional[0]), *each.positional[1:]), each.named) for each in found]

    return made


def _every(change: Callable[[Tensor], Tensor], make: Make) -> Make:
    return lambda generator: [Given(tuple(map(change, each.positional))) for each in make(generator)]


def columns_of_wider(x: Tensor) -> Tensor:
    return x.repeat(1, 2)[:, : x.shape[1]]


def off_by_one(x: Tensor) -> Tensor:
    """The same sizes and strides where no descriptor can read them: behind a number."""
    return torch.cat([x.flatten(), x.flatten()])[1 : x.numel() + 1].view(x.shape)


def transposed(x: Tensor) -> Tensor:
    """The same numbers, columns one after the other."""
    return x.T.contiguous().T


def at_one_address(generator: torch.Generator) -> list[Given]:
    memory = drawn(generator, 16 * 128)
    rows = memory[: 16 * 64].view(16, 64), memory.view(16, 128)
    return [Given((each, drawn(generator, 96, each.shape[1]))) for each in rows]


def both_operands(generator: torch.Generator) -> list[Given]:
    """One tensor as both, then two."""
    square = drawn(generator, 96, 96)
    return [Given((square, square)), Given((drawn(generator, 96, 96), drawn(generator, 96, 96)))]


def of_one_storage(generator: torch.Generator) -> list[Given]:
    flat = drawn(generator, 96 * 64 + 96)
    return [Given((drawn(generator, 16, 64), flat[: 96 * 64].view(96, 64), flat[96 * 64 :]))]


def a_parameter(generator: torch.Generator) -> list[Given]:
    return [Given((drawn(generator, 16, 64), nn.Parameter(drawn(generator, 96, 64))))]


def ids_and_table(generator: torch.Generator) -> list[Given]:
    return [Given((torch.arange(16), drawn(generator, 96, 64)))]


def heads_and_positions(generator: torch.Generator) -> list[Given]:
    return [Given((drawn(generator, 16, 4, 64), torch.arange(16)))]


def halves(generator: torch.Generator) -> list[Given]:
    return [Given(drawn(generator, 16, 128).chunk(2, -1))]


def numbers_in_turns(make: Make, *numbers: Any) -> Make:
    """The same tensors with one number after the other."""

    def made(generator: torch.Generator) -> list[Given]:
        return [Given((*each.positional, number)) for each in make(generator) for number in numbers]

    return made


_FEW: Final = tensors((16, 64), (96, 64))
_ROWS: Final = tensors((16, 64))
_TWO_ROWS: Final = tensors((16, 64), (16, 64))
_NORMED: Final = tensors((16, 64), (64,))
_BIAS: Final = tensors((200, 64), (256, 64), (256,))
_FLOAT: Final = partial(tensors, dtype=torch.float32)

CASES: Final[Mapping[str, Case]] = MappingProxyType(
    {
        "few rows": Case(linear, _FEW),
        "one row": Case(linear, tensors((1, 64), (96, 64))),
        "columns of a wider x": Case(linear, in_turns(_FEW, _first(columns_of_wider, _FEW))),
        "three axes": Case(linear, tensors((2, 8, 64), (96, 64))),
        "one axis": Case(linear, tensors((64,), (96, 64))),
        "a parameter": Case(linear, a_parameter),
        "many rows and a bias": Case(linear, _BIAS),
        "a bias by name": Case(
            linear, lambda g: [Given(b.positional[:2], {"bias": b.positional[2]}) for b in _BIAS(g)]
        ),
        "weight and bias of one storage": Case(linear, of_one_storage),
        "no multiple of 16 bytes": Case(linear, in_turns(_FEW, _first(off_by_one, _FEW))),
        "columns one after the other": Case(linear, in_turns(_FEW, _every(transposed, _FEW))),
        "two layouts at one address": Case(linear, at_one_address),
        "one tensor as both operands": Case(linear, both_operands),
        "float32": Case(linear, _FLOAT((16, 64), (96, 64))),
        "float16": Case(linear, tensors((16, 64), (96, 64), dtype=torch.float16)),
        "rows times columns": Case(matmul, tensors((16, 64), (64, 96))),
        "three axes times columns": Case(matmul, tensors((2, 8, 64), (64, 96))),
        "gradient of x": Case(matmul, tensors((200, 96), (96, 64))),
        "gradient of a weight": Case(matmul, _first(lambda dy: dy.T, tensors((200, 96), (200, 64)))),
        "gradient of a weight, float32": Case(matmul, _first(lambda dy: dy.T, _FLOAT((200, 96), (200, 64)))),
        "norms of rows": Case(rmsnorm, numbers_in_turns(_NORMED, 1e-6, 1e-5, 0.0)),
        "norms of rows, float32": Case(rmsnorm, _FLOAT((2, 8, 63), (63,))),
        "norms of rows behind a number": Case(rmsnorm, in_turns(_NORMED, _first(off_by_one, _NORMED))),
        "norms of sums": Case(add_rmsnorm, tensors((16, 64), (16, 64), (64,), more=(1e-5,))),
        "norms around means": Case(layernorm, tensors((16, 64), (64,), (64,))),
        "norms without a weight": Case(layernorm, numbers_in_turns(tensors((16, 64), more=(None, None)), 1e-5, 1e-6)),
        "norms, eps by name": Case(layernorm, named(_NORMED, eps=1e-3)),
        "gelu of rows": Case(gelu, in_turns(_ROWS, named(_ROWS, approximate="tanh"))),
        "gelu behind a number": Case(gelu, in_turns(_ROWS, _first(off_by_one, _ROWS))),
        "gelu of an odd number": Case(gelu, tensors((7, 9))),
        "gates": Case(swiglu, in_turns(_TWO_ROWS, _first(off_by_one, _TWO_ROWS))),
        "softmax of rows": Case(softmax, in_turns(_ROWS, named(_ROWS, dtype=torch.float32))),
        "softmax of the last of three axes": Case(softmax, tensors((2, 8, 1000), more=(-1,))),
        "its logarithm": Case(log_softmax, in_turns(_ROWS, _FLOAT((16, 64)))),
    }
)

MORE: Final[Mapping[str, Case]] = MappingProxyType(
    {
        "ids are looked at": Case(embedding, ids_and_table),
        "positions are looked at": Case(rope, heads_and_positions),
        "halves are copied": Case(swiglu, halves),
        "columns are copied": Case(softmax, tensors((16, 64), more=(0,))),
    }
)
"""Calls that do more than launch: they stay Python's for good."""
