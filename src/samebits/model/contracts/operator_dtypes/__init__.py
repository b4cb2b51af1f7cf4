"""Every public operator on every dtype that torch has: what it computes in, and what it says of those it refuses.

Functions that are a contract's subject bring their inputs with them; the rest of what `samebits.ops` offers has its
own in `public.py`, and what is in neither is an error."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from samebits.model.contracts.operator_dtypes.public import functions
from samebits.model.contracts.operator_dtypes.reference import ALWAYS_FLOAT32, floats64, results64, taken64
from samebits.ops.arguments import short

Given: TypeAlias = dict[str, Any]
# What may be wrong with a function, each with the number of the first dtype for which it is; 0: with none.
COLUMNS: Final = (
    "refused, and declared",
    "computed with another result than declared",
    "computed, and not declared",
    "raised what is no refusal",
    "refused without naming the dtype and what is really allowed in one line",
)
REFUSED, OTHER_RESULT, TAKEN, CRASHED, UNCLEAR = range(len(COLUMNS))


def every_dtype() -> list[torch.dtype]:
    """Those of this torch, by name."""
    return sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)


def as_dtype(value: Any, dtype: torch.dtype) -> Any:
    """The same numbers in a dtype; of dtypes into which torch copies nothing, memory of that shape."""
    if isinstance(value, list):
        return [as_dtype(each, dtype) for each in value]
    with warnings.catch_warnings():
        # Some dtypes are announced as experimental, others as going away; that is torch's matter.
        warnings.simplefilter("ignore")
        try:
            found = value.detach().to(dtype)
        except RuntimeError:
            found = _memory_of(value.shape, dtype)
    if value.grad is not None:
        found.grad = as_dtype(value.grad, dtype)
    return found


def _memory_of(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Bytes of zero, seen as a dtype; quantized numbers have a scale besides, and memory as it comes."""
    if str(dtype).startswith(("torch.qint", "torch.quint")):
        return torch._empty_affine_quantized(list(shape), scale=1.0, zero_point=0, dtype=dtype)
    return torch.zeros(*shape[:-1], shape[-1] * dtype.itemsize, dtype=torch.uint8).view(dtype)


@dataclass(frozen=True, slots=True)
class Trial:
    """One call: arguments, the dtype that is tried, and the dtypes of the results if it is declared, else None."""

    given: Given
    dtype: torch.dtype
    declared: tuple[torch.dtype, ...] | None
    floats: tuple[torch.dtype, ...]
    """The floating dtypes that a refusal may name as allowed."""

    def fault(self, function: Callable[..., Any]) -> int | None:
        """The column of what is wrong, or None."""
        try:
            found = function(**self.given)
        except (ValueError, TypeError) as error:
            if self.declared is not None:
                return REFUSED
            return None if self._is_clear(str(error)) else UNCLEAR
        except Exception:  # whatever else a function raises is a crash, and a finding
            return CRASHED
        if self.declared is None:
            return TAKEN
        results = found if isinstance(found, tuple) else (found,)
        return None if tuple(each.dtype for each in results) == self.declared else OTHER_RESULT

    def _is_clear(self, words: str) -> bool:
        """One line with the dtype and what is allowed, of which all is really taken."""
        named = set(re.findall(r"\bb?float\w+", words.partition("allowed")[2]))
        one_line = short(self.dtype) in words and "\n" not in words and ("allowed" in words or "must agree" in words)
        return one_line and named <= {short(each) for each in self.floats}


def _is_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, list) and all(isinstance(each, Tensor) for each in value))


def together(name: str, made: Callable[[], Given]) -> Iterator[Trial]:
    """All floating arguments in one dtype, but for those that are always float32."""
    for dtype in every_dtype():
        moved = {
            key: as_dtype(value, dtype) for key, value in made().items() if _is_tensors(value) and _moves(key, value)
        }
        declared = results64(name, dtype) if dtype in floats64(name) else None
        yield Trial({**made(), **moved}, dtype, declared, floats64(name))


def one_alone(name: str, made: Callable[[], Given]) -> Iterator[Trial]:
    """One argument in another dtype than the rest, in turn."""
    tensors = {key: value for key, value in made().items() if _is_tensors(value)}
    moving = [key for key, value in tensors.items() if _moves(key, value)]
    for key, value in tensors.items():
        for dtype in every_dtype():
            declared = taken64(name, key, dtype, whole=not _first(value).is_floating_point(), alone=moving == [key])
            of_results = dtype if moving == [key] else torch.float32
            given = {**made(), key: as_dtype(made()[key], dtype)}
            yield Trial(given, dtype, results64(name, of_results) if declared else None, floats64(name))


def _first(value: Any) -> Tensor:
    found: Tensor = value[0] if isinstance(value, list) else value
    return found


def _moves(key: str, value: Any) -> bool:
    return _first(value).is_floating_point() and key not in ALWAYS_FLOAT32


def _first_faults(
    trials: Callable[[str, Callable[[], Given]], Iterator[Trial]],
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
    seed: int,
) -> Tensor:
    numbers = {dtype: number for number, dtype in enumerate(every_dtype(), 1)}
    known: Mapping[str, tuple[Callable[..., Any], Callable[[], Given]]] = functions(seed)
    table = torch.zeros(len(known), len(COLUMNS), dtype=torch.int64)
    for row, (name, (function, made)) in enumerate(known.items()):
        for trial in trials(name, made):
            column = trial.fault(wrap(function))
            if column is not None and not table[row, column]:
                table[row, column] = numbers[trial.dtype]
    return table


def unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def in_every_dtype(seed: Tensor, *, wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = unchanged) -> Tensor:
    """int64 (functions, columns): see COLUMNS. `wrap` stands around each operator: where faults are planted."""
    return _first_faults(together, wrap, int(seed))


def in_mixed_dtypes(seed: Tensor, *, wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = unchanged) -> Tensor:
    """The same where one argument alone has the dtype."""
    return _first_faults(one_alone, wrap, int(seed))
