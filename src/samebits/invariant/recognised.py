"""Parts of models that are known by their code: in a block samebits' own stands in their place, whoever wrote them.

They are looked for in the classes that are there when the first block opens, and in every class that is defined later,
so that a model's first call goes the way of its last."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from torch import nn

from samebits.invariant import norms, rotation


@cache
def install() -> None:
    """Once, by the first block."""
    own = nn.Module.__dict__.get("__init_subclass__")

    def meet(cls: type[nn.Module], /, **options: Any) -> None:
        if own is None:
            super(nn.Module, cls).__init_subclass__(**options)
        else:
            own.__get__(None, cls)(**options)
        _replace_in(cls)

    nn.Module.__init_subclass__ = classmethod(meet)  # type: ignore[assignment]
    for each in set(_subclasses(nn.Module)):
        _replace_in(each)


def _replace_in(cls: type[nn.Module]) -> None:
    norms.replace_in(cls)
    rotation.replace_in(cls.__module__)


def _subclasses(parent: type[nn.Module]) -> Iterator[type[nn.Module]]:
    for each in parent.__subclasses__():
        yield each
        yield from _subclasses(each)
