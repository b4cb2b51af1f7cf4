"""The launch that a checker forces on an operator, where it is one that the operator knows.

Knows no operator: each has its own kind of launch, and a launch of another kind does not concern it."""

from __future__ import annotations

from typing import TypeVar

from samebits.native.launch_numbers import forced

Kind = TypeVar("Kind")


def forced_launch(kind: type[Kind], *, described: bool = True) -> Kind | None:
    """The forced launch of this kind, or None where the operator may choose.

    `described`: the tensor memory accelerator can read the operands. Within one operator it may read some and not
    others; a launch that would load by it then concerns only those that it can read."""
    launch = forced("launch")
    if not isinstance(launch, kind):
        return None
    return launch if described or getattr(launch, "loads", "") != "tma" else None
