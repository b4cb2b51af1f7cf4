"""The same bits, whatever the batch, the split or the number of ranks; at vendor speed; with the proof attached."""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samebits import nn, ops
    from samebits.checker import check, reveal
    from samebits.invariant import invariant_mode

__version__ = "0.1.0"
LAUNCH_VARIABLE = "SAMEBITS_LAUNCH_IN_CPP"
"""0 in the environment: no call is launched in C++, unless `launch_in_cpp` is called."""
__all__ = ["check", "invariant_mode", "launch_in_cpp", "nn", "ops", "reveal"]

# Loaded when first named: `import samebits.numerics` must need neither torch nor any operator.
_HOMES = {
    "nn": "samebits.nn",
    "ops": "samebits.ops",
    "check": "samebits.checker",
    "reveal": "samebits.checker",
    "invariant_mode": "samebits.invariant",
}


def launch_in_cpp(mode: bool = True) -> None:
    """From now on, in this process, calls of functions of `samebits.ops` on a GPU are launched in C++ where that is
    known to do the same: equal bits in less of the host's time. False: no longer. What imported a function by its name
    before keeps what it has.

    So it is by itself where torch and Triton are built for CUDA. Contract `host_launch` says what is launched. Receipts
    of operators and models are made with launches by Python."""
    ops = import_module("samebits.ops")
    calls = import_module("samebits.ops.contracts.host_launch.triton_calls")
    for name in ops.__all__:
        function = getattr(calls, name, None)
        if function is not None:
            setattr(ops, name, function if mode else function.__wrapped__)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'samebits' has no attribute {name!r}; it has: {', '.join(__all__)}")
    module = import_module(_HOMES[name])
    return module if name in ("nn", "ops") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _has_cuda() -> bool:
    """Whether calls on a GPU are possible; asked where torch is loaded already."""
    return sys.modules["torch"].version.cuda is not None and find_spec("triton") is not None


class _Package(ModuleType):
    """This package. Python sets `ops` here when it has loaded it, before anybody can ask it for a name."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name != "ops":
            return
        import_module("samebits.ops.first_order").refuse()
        if os.environ.get(LAUNCH_VARIABLE) != "0" and _has_cuda():
            launch_in_cpp()


sys.modules[__name__].__class__ = _Package
