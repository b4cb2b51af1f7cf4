"""Where the tracer takes the place of Triton's interpreter: builder, reductions, executor, truth values of tensors.

Private parts of Triton 3.6, pinned and tested at the start of every tracing process. An operation that is in none
of the tables is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter as interp

from samebits.checker.tracing import VERSION
from samebits.checker.tracing.interpreter import Tracer
from samebits.checker.tracing.memory import is_symbolic
from samebits.checker.tracing.nodes import RefusedError

BINARY: Final = {
    "fadd": "add",
    "fsub": "sub",
    "fmul": "mul",
    "fdiv": "div.full",
    "precise_divf": "div",
    "frem": "rem",
    "maxnumf": "max",
    "maximumf": "max.nan",
    "minnumf": "min",
    "minimumf": "min.nan",
    "fcmpOLT": "lt",
    "fcmpOGT": "gt",
    "fcmpOLE": "le",
    "fcmpOGE": "ge",
    "fcmpOEQ": "eq",
    "fcmpUNE": "ne",
    "icmpEQ": "eq",
    "icmpNE": "ne",
    "icmpSLT": "lt",
    "icmpSGT": "gt",
    "icmpSLE": "le",
    "icmpSGE": "ge",
    "icmpULT": "ult",
    "icmpUGT": "ugt",
    "icmpULE": "ule",
    "icmpUGE": "uge",
    "add": "iadd",
    "sub": "isub",
    "mul": "imul",
    "shl": "shl",
    "lshr": "lshr",
    "ashr": "ashr",
    "umulhi": "umulhi",
    "and": "and",
    "or": "or",
    "xor": "xor",
}
UNARY: Final = {
    "fabs": "abs",
    "exp": "exp.approx",
    "exp2": "exp2",
    "log": "log.approx",
    "log2": "log2",
    "sqrt": "sqrt.approx",
    "precise_sqrt": "sqrt",
    "rsqrt": "rsqrt.approx",
    "floor": "floor",
    "ceil": "ceil",
    "sin": "sin.approx",
    "cos": "cos.approx",
    "erf": "erf.approx",
}
CASTS: Final = ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc", "fp_to_fp", "int_cast")
# These only move elements; numpy does it with any of them.
MOVING: Final = ("reshape", "trans", "expand_dims", "broadcast", "split")
# These never see an expression, or hand it to one of the others.
PLAIN: Final = (
    "get_program_id",
    "get_num_programs",
    "make_range",
    "load",
    "store",
    "make_tensor_descriptor",
    "descriptor_load",
    "descriptor_store",
    "addptr",
    "idiv",
    "sdiv",
    "udiv",
    "srem",
    "urem",
    "minsi",
    "maxsi",
    "minui",
    "maxui",
    "assert",
    "assume",
    "barrier",
    "iabs",
    "int_to_ptr",
    "ptr_to_int",
)
FLOATING: Final = frozenset(
    (*UNARY, "fadd", "fsub", "fmul", "fdiv", "precise_divf", "frem", "fp_ext", "fp_trunc", "fp_to_fp")
)


def install(tracer: Tracer) -> None:
    """Put the tracer in the place of the interpreter's arithmetic, memory and executor. For the rest of the process."""
    if not triton.__version__.startswith(VERSION + "."):
        raise RuntimeError(f"tracing: triton is {triton.__version__}; allowed: {VERSION}, whose interpreter is known")
    builder = interp.InterpreterBuilder
    known = {f"create_{name}" for name in (*BINARY, *UNARY, *CASTS, *MOVING, *PLAIN)}
    for name in [each for each in vars(builder) if each.startswith("create_")]:
        if name not in known:
            setattr(builder, name, _refuses(name.removeprefix("create_")))
    for name, op in BINARY.items():
        setattr(builder, f"create_{name}", _traced(tracer, op, getattr(builder, f"create_{name}"), name in FLOATING))
    for name, op in UNARY.items():
        setattr(builder, f"create_{name}", _traced(tracer, op, getattr(builder, f"create_{name}"), True))
    for name in CASTS:
        setattr(builder, f"create_{name}", _cast(tracer, "cast", getattr(builder, f"create_{name}"), name in FLOATING))
    builder.create_bitcast = _cast(tracer, "bitcast", interp.InterpreterBuilder.create_int_to_ptr, False)
    builder.create_fma = lambda self, x, y, z: tracer.elementwise("fma", (x, y, z), z.dtype)
    builder.create_select = lambda self, condition, x, y: tracer.select(condition, x, y)
    builder.create_dot = lambda self, *operands: tracer.dot(*operands)
    builder.create_splat = lambda self, kind, handle: interp.TensorHandle(
        np.array(np.broadcast_to(handle.data.reshape(()), kind.shape)), handle.dtype.scalar
    )
    builder.create_join = lambda self, left, right: interp.TensorHandle(
        np.stack([tracer.lifted(left), tracer.lifted(right)], axis=-1), left.dtype.scalar
    )
    builder.create_masked_load = lambda self, pointers, mask, other, *_, **__: tracer.load(pointers, mask, other)
    builder.create_masked_store = lambda self, pointers, value, mask, *_, **__: tracer.store(pointers, value, mask)
    _install_language(tracer)


def _install_language(tracer: Tracer) -> None:
    size = interp._validate_np_data_size
    interp._validate_np_data_size = lambda data, dtype: is_symbolic(data) or size(data, dtype)
    apply_impl = interp.ReduceOps.apply_impl

    def reduce(self: Any, inputs: tuple[Any, ...]) -> Any:
        made = tracer.reduce(self, inputs)
        return apply_impl(self, inputs) if made is None else made

    interp.ReduceOps.apply_impl = reduce
    interp.ScanOps.apply_impl = lambda self, inputs: _refuses("scan")(self)
    # Patched once for the process: the interpreter itself would do so for every call of a device function.
    scope = interp._LangPatchScope()
    for language in (tl, tl.core):
        interp._patch_builtin(language, interp.interpreter_builder, scope)
        interp._patch_builtin(language.tensor, interp.interpreter_builder, scope)
        interp._patch_lang_tensor(language.tensor, scope)
        interp._patch_lang_core(language, scope)
    interp._patch_builtin(tl.math, interp.interpreter_builder, scope)
    interp._patch_builtin(tl.core.tensor_descriptor_base, interp.interpreter_builder, scope)
    # Only scalars steer; Triton's own code asks of a block whether it is there.
    tl.tensor.__bool__ = lambda self: (
        self.type.is_block() or bool(tracer.concrete(self.handle, "a branch").reshape(-1)[0])
    )
    tl.tensor.__index__ = lambda self: int(tracer.concrete(self.handle, "a bound").reshape(-1)[0])
    interp.InterpretedFunction.run = lambda self, *arguments, grid, warmup, **options: tracer.execute(
        self, arguments, grid, options
    )
    interp.InterpretedFunction.__call__ = lambda self, *arguments, **options: tracer.call(self, arguments, options)


def _refuses(name: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise RefusedError(f"{name} is an operation that cannot be traced")

    return refused


def _traced(tracer: Tracer, op: str, original: Callable[..., Any], always: bool) -> Callable[..., Any]:
    """An elementwise operation: on nodes where there is one, or where rounding could happen; else on numbers."""

    def traced(self: Any, *handles: Any) -> Any:
        if always or any(is_symbolic(handle.data) for handle in handles):
            return tracer.elementwise(op, handles, handles[0].dtype)
        return original(self, *handles)

    return traced


def _cast(tracer: Tracer, op: str, original: Callable[..., Any], always: bool) -> Callable[..., Any]:
    def cast(self: Any, handle: Any, kind: Any, *rest: Any) -> Any:
        if always or is_symbolic(handle.data):
            return tracer.elementwise(op, (handle,), kind)
        return original(self, handle, kind, *rest)

    return cast
