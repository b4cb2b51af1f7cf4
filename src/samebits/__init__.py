"""The same bits, whatever the batch, the split or the number of ranks; at vendor speed; with the proof attached."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samebits import nn, ops
    from samebits.checker import check, reveal
    from samebits.invariant import invariant_mode

__version__ = "0.1.0"
__all__ = ["check", "invariant_mode", "nn", "ops", "reveal"]

# Loaded when first named: `import samebits.numerics` must need neither torch nor any operator.
_HOMES = {
    "nn": "samebits.nn",
    "ops": "samebits.ops",
    "check": "samebits.checker",
    "reveal": "samebits.checker",
    "invariant_mode": "samebits.invariant",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'samebits' has no attribute {name!r}; it has: {', '.join(__all__)}")
    module = import_module(_HOMES[name])
    return module if name in ("nn", "ops") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
