"""Operations on lists of tensors, `_foreach_*`, taken apart into the operation on each: what decides about one decides.

Knows how torch names them and nothing of what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

PREFIX: Final = "_foreach_"
_OTHER_NAMES: Final = {"norm": "linalg_vector_norm"}
_WITHOUT_IN_PLACE_FORM: Final = ("maximum_", "minimum_")
"""Lists have one, a single tensor has none: amsgrad and Adamax."""
_BY_KEYWORD: Final = ("value", "alpha", "dtype")
"""Arguments that the single operation takes by name only."""


def single(name: str) -> Any:
    """`torch.ops.aten.add_` for `_foreach_add_`; None where torch has no such operation."""
    name = name.removeprefix(PREFIX)
    if name in _WITHOUT_IN_PLACE_FORM:
        return _written_back(getattr(torch.ops.aten, name[:-1]))
    return getattr(torch.ops.aten, _OTHER_NAMES.get(name, name), None)


def _written_back(operation: Any) -> Callable[..., Any]:
    return lambda x, *args, **kwargs: x.copy_(operation(x, *args, **kwargs))


def one_by_one(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The results in order. Lists among the arguments, of tensors or of numbers, give one item to each call."""
    operation, length = single(name), len(args[0])
    names = [argument.name for argument in func._schema.arguments]
    named = {
        "value" if key == "scalars" and "addc" in name else key: each for key, each in zip(names, args, strict=False)
    }
    named |= kwargs
    kwargs = {key: each for key, each in named.items() if key in _BY_KEYWORD}
    args = tuple(each for key, each in named.items() if key not in _BY_KEYWORD)

    def item(value: Any, place: int) -> Any:
        return value[place] if isinstance(value, (list, tuple)) and len(value) == length else value

    return [
        operation(*(item(each, place) for each in args), **{key: item(each, place) for key, each in kwargs.items()})
        for place in range(length)
    ]
