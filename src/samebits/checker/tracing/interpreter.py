"""Triton's interpreter made to compute with expressions instead of numbers.

Runs in a process of its own that was started with TRITON_INTERPRET=1, and imports Triton; hooks.py puts it in place.
Integers stay integers, for they steer; every operation on floats makes nodes."""

from __future__ import annotations

import inspect
from typing import Any, Final

import numpy as np
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter as interp
from triton.tools.tensor_descriptor import TensorDescriptor

from samebits.checker.tracing.memory import MIXED, NODE, Memory, is_symbolic, joined
from samebits.checker.tracing.nodes import COMPARISONS, Nodes, RefusedError
from samebits.contracts.traced import SHARED

ELEMENTARY: Final = "samebits.numerics.elementary.triton_generated"
ROUNDING: Final = ("add", "sub", "mul", "fma", "div")
# The matrix unit adds this many products of 16-bit operands at a time; float32 is one fused multiply-add after another.
GROUP: Final = 16


class Tracer:
    """The interpreter's builder and executor, on one memory and one table of nodes."""

    def __init__(self) -> None:
        self.fault = ""
        """A planted fault: a program runs "twice" or is "missing", or results of float32 are "narrowed" in between."""
        self.branch: bool | None = None
        """Which way a branch goes that reads data of no row, hence the same way for every row; None: refused."""
        self._seen: dict[tuple, bytes] = {}
        self._elementary: set[str] = set()
        self.begin(finite=False)

    def begin(self, *, finite: bool, branch: bool | None = None) -> None:
        """A new table of nodes and a new memory."""
        self.nodes, self.branch = Nodes(finite=finite), branch
        self._seen.clear()
        self._elementary.clear()
        self.forget()

    def forget(self) -> None:
        """A new memory; expressions keep their numbers."""
        self.memory = Memory(self.nodes)

    # Values.

    def lifted(self, handle: Any) -> np.ndarray:
        """A handle's data as nodes."""
        data = handle.data
        if is_symbolic(data):
            return data  # type: ignore[no-any-return]
        if data.dtype == bool:
            dtype, patterns = "int1", data.astype(np.int64)
        elif handle.dtype.scalar == tl.bfloat16:
            dtype, patterns = "bf16", data.astype(np.int64)
        elif data.dtype.kind == "f":
            dtype, patterns = {2: "fp16", 4: "fp32", 8: "fp64"}[data.itemsize], data.view(f"u{data.itemsize}")
        else:
            dtype, patterns = data.dtype.name, data
        kinds, back = np.unique(patterns, return_inverse=True)
        made = np.zeros(data.shape, NODE)
        made["id"] = np.array([self.nodes.constant(dtype, int(kind)) for kind in kinds])[back].reshape(data.shape)
        made["row"] = SHARED
        return made

    def concrete(self, handle: Any, what: str) -> np.ndarray:
        """A handle's data as numbers; refused where they depend on data."""
        data = handle.data
        if not is_symbolic(data):
            return data  # type: ignore[no-any-return]
        if what == "a branch" and self.branch is not None and (data["row"] == SHARED).all():
            return np.full(data.shape, self.branch)
        truths = [self.nodes.truth(int(node)) for node in data["id"].reshape(-1)]
        if None in truths:
            raise RefusedError(f"{what} depends on data")
        return np.array(truths, bool).reshape(data.shape)

    def apply(self, op: str, dtype: str, operands: list[np.ndarray]) -> np.ndarray:
        """One node for every element; a whole block that was met before costs one look-up."""
        operands = list(np.broadcast_arrays(*operands))
        ids = [np.ascontiguousarray(operand["id"]).reshape(-1) for operand in operands]
        key = (op, dtype, *(each.tobytes() for each in ids))
        found = self._seen.get(key)
        if found is None:
            made = {
                each: self.nodes.make(op, dtype, each)
                for each in set(zip(*(each.tolist() for each in ids), strict=True))
            }
            found = np.array(
                [made[each] for each in zip(*(each.tolist() for each in ids), strict=True)], np.int64
            ).tobytes()
            self._seen[key] = found
        result = np.zeros(operands[0].shape, NODE)
        result["id"] = np.frombuffer(found, np.int64).reshape(result.shape)
        result["row"] = joined([operand["row"] for operand in operands])
        return result

    def elementwise(self, op: str, handles: tuple[Any, ...], dtype: Any) -> Any:
        kind = tl.int1 if op in COMPARISONS else dtype.scalar
        if op == "lt" and self.nodes.finite and self._asks_finite(handles):
            return interp.TensorHandle(np.ones(handles[0].data.shape, bool), tl.int1)
        made = self.apply(op, kind.name, [self.lifted(handle) for handle in handles])
        if self.fault == "narrowed" and op in ROUNDING and kind == tl.float32:
            made = self.apply("cast", "fp32", [self.apply("cast", "bf16", [made])])
        return interp.TensorHandle(made, kind)

    def _asks_finite(self, handles: tuple[Any, ...]) -> bool:
        """Whether |x| < inf is asked: true of the values that a trace for finite ones is about."""
        left, right = (np.unique(self.lifted(handle)["id"]).tolist() for handle in handles)
        inf = self.nodes.number("fp32", float("inf"))
        return right == [inf] and all(self.nodes.keys[self.nodes.bare(node)][0] == "abs" for node in left)

    def select(self, condition: Any, x: Any, y: Any) -> Any:
        if not is_symbolic(condition.data):
            if not is_symbolic(x.data) and not is_symbolic(y.data):
                return interp.TensorHandle(np.where(condition.data, x.data, y.data), y.dtype.scalar)
            return interp.TensorHandle(np.where(condition.data, self.lifted(x), self.lifted(y)), y.dtype.scalar)
        return self.elementwise("select", (condition, x, y), y.dtype)

    # Sums over an axis.

    def dot(self, a: Any, b: Any, accumulator: Any, *_: Any) -> Any:
        """Products added in order of k: one at a time in float32, in groups of 16 by the matrix unit."""
        left, right, start = self.lifted(a), self.lifted(b), self.lifted(accumulator)
        wide = a.dtype.scalar == tl.float32
        result = np.zeros(start.shape, NODE)
        result["row"] = self._dot_rows(left, right, start)
        # Rows of a batch have equal expressions under equal names: each kind of row meets each kind of column once.
        rows, row_of = np.unique(left["id"], axis=0, return_inverse=True)
        columns, column_of = np.unique(right["id"].T, axis=0, return_inverse=True)
        starts, start_of = np.unique(start["id"], return_inverse=True)
        pairs = row_of.reshape(-1, 1) * len(columns) + column_of.reshape(1, -1)
        kinds, kind_of = np.unique(pairs * len(starts) + start_of.reshape(start.shape), return_inverse=True)
        lines, others = rows.tolist(), columns.tolist()
        made = []
        for kind in kinds.tolist():
            pair, first = divmod(kind, len(starts))
            line, other = divmod(pair, len(columns))
            made.append(self._chain(lines[line], others[other], int(starts[first]), wide))
        result["id"] = np.array(made)[kind_of].reshape(start.shape)
        return interp.TensorHandle(result, accumulator.dtype.scalar)

    def _chain(self, left: list[int], right: list[int], total: int, wide: bool) -> int:
        if not wide:
            products = list(zip(left, right, strict=True))
            for first in range(0, len(products), GROUP):
                total = self.nodes.fused(total, products[first : first + GROUP])
            return total
        for x, y in zip(left, right, strict=True):
            total = self.nodes.make("fma", "fp32", (x, y, total))
        return total

    def _dot_rows(self, left: np.ndarray, right: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Of which row each element is; a factor of exactly 0 brings nothing from the other, if that is finite."""
        kinds = np.union1d(left["id"], right["id"]).tolist()
        zeros = [kind for kind in kinds if self.nodes.value(kind) == 0.0]
        counted = np.ones((*left.shape, right.shape[1]), bool)
        if self.nodes.finite:
            counted = ~(np.isin(left["id"], zeros)[:, :, None] | np.isin(right["id"], zeros)[None, :, :])
        total = start["row"]
        for part in (
            np.broadcast_to(left["row"][:, :, None], counted.shape),
            np.broadcast_to(right["row"], counted.shape),
        ):
            known = counted & (part != SHARED)
            least = np.where(known, part, np.iinfo(np.int64).max).min(1)
            most = np.where(known, part, SHARED).max(1)
            own = np.where(
                most == SHARED, np.where(least == MIXED, MIXED, SHARED), np.where(least == most, most, MIXED)
            )
            total = joined([total, own])
        return total

    def reduce(self, operation: Any, inputs: tuple[Any, ...]) -> Any:
        """Two elements have one order; a maximum needs none; any other order would be the compiler's choice."""
        (block,) = inputs
        data, axis = block.handle.data, operation.axis
        floating = is_symbolic(data) or block.dtype.is_floating()
        if not floating:
            return None
        data = self.lifted(block.handle)
        if axis is None:
            data, axis = data.reshape(-1), 0
        parts = [np.take(data, at, axis) for at in range(data.shape[axis])]
        for op, combine in (("max", tl.standard._elementwise_max), ("min", tl.standard._elementwise_min)):
            if operation.combine_fn == combine:
                return self._wrapped(self._extreme(op, block.dtype.name, data, axis), block.dtype, operation, axis)
        if len(parts) != 2:
            raise RefusedError(f"a sum over {len(parts)} elements is left to the compiler's order")
        low, high = (self._wrapped(part, block.dtype, None, axis) for part in parts)
        return self._wrapped(operation.combine_fn.fn(low, high).handle.data, block.dtype, operation, axis)

    def _extreme(self, op: str, dtype: str, data: np.ndarray, axis: int) -> np.ndarray:
        lines = np.moveaxis(data, axis, -1)
        result = np.zeros(lines.shape[:-1], NODE)
        made: dict[bytes, int] = {}
        for at in np.ndindex(*result.shape):
            kinds = np.unique(lines["id"][at])
            if kinds.tobytes() not in made:
                made[kinds.tobytes()] = self.nodes.make(op, dtype, kinds.tolist())
            result["id"][at] = made[kinds.tobytes()]
        result["row"] = joined([lines["row"][..., number] for number in range(lines.shape[-1])])
        return result

    def _wrapped(self, data: np.ndarray, dtype: Any, operation: Any, axis: int) -> Any:
        if operation is not None and operation.keep_dims:
            data = np.expand_dims(data, axis)
        kind = tl.block_type(dtype, list(data.shape)) if data.shape else dtype
        return tl.tensor(interp.TensorHandle(data if data.shape else data.reshape(1), dtype.scalar), kind)

    # Memory.

    def load(self, pointers: Any, mask: Any, other: Any) -> Any:
        addresses, dtype = self.concrete(pointers, "an address"), pointers.get_element_ty()
        inside = self._mask(mask, "the mask of a load", addresses)
        if not dtype.is_floating() and not self._is_traced(addresses[inside]):
            return self._load_integers(addresses, inside, other, dtype)
        if other is None:
            result = np.zeros(addresses.shape, NODE)
            result["id"], result["row"] = self.nodes.leaf("nothing", 0, dtype.name), MIXED
        else:
            result = np.array(np.broadcast_to(self.lifted(other), addresses.shape))
        if inside.any():
            result[inside] = self.memory.read(*self.memory.find(addresses[inside], "a load reads"))
        return interp.TensorHandle(result, dtype)

    def _mask(self, mask: Any, what: str, addresses: np.ndarray) -> np.ndarray:
        # A descriptor hands over a plain array.
        inside = mask if isinstance(mask, np.ndarray) else self.concrete(mask, what)
        return np.broadcast_to(inside, addresses.shape)

    def _is_traced(self, addresses: np.ndarray) -> bool:
        return addresses.size > 0 and bool(self.memory.find(addresses, "a load reads")[0].dtype)

    def _load_integers(self, addresses: np.ndarray, inside: np.ndarray, other: Any, dtype: Any) -> Any:
        kind = interp._get_np_dtype(dtype)
        result = (
            np.zeros(addresses.shape, kind)
            if other is None
            else np.array(np.broadcast_to(other.data, addresses.shape), kind)
        )
        if inside.any():
            region, elements = self.memory.find(addresses[inside], "a load reads")
            flat = region.tensor.new_empty(0).set_(region.tensor.untyped_storage(), 0, (len(region.cells),), (1,))
            result[inside] = flat.numpy()[elements]
        return interp.TensorHandle(result, dtype)

    def store(self, pointers: Any, value: Any, mask: Any) -> None:
        addresses = self.concrete(pointers, "an address")
        inside = self._mask(mask, "the mask of a store", addresses)
        if not inside.any():
            return
        region, elements = self.memory.find(addresses[inside], "a store writes")
        if not region.dtype:
            raise RefusedError(f"integers are stored to {region.name}")
        self.memory.write(region, elements, np.broadcast_to(self.lifted(value), addresses.shape)[inside])

    # Launches.

    def execute(self, kernel: Any, arguments: tuple[Any, ...], grid: tuple[int, ...], options: dict[str, Any]) -> None:
        """Every program of a launch, as the interpreter would run it."""
        self._check_options(kernel, options)
        function = kernel.rewrite()
        named = inspect.getcallargs(
            function, *arguments, **{key: value for key, value in options.items() if key in kernel.arg_names}
        )
        annotations = function.__annotations__
        for name, value in named.items():
            tensor = value.base if isinstance(value, TensorDescriptor) else value
            if isinstance(tensor, Tensor):
                self.memory.know(f"{kernel.__name__}.{name}", tensor)
        given = {
            name: value if "constexpr" in str(annotations.get(name)) else interp._implicit_cvt(value)
            for name, value in named.items()
        }
        self.memory.launch += 1
        interp.interpreter_builder.set_grid_dim(*grid, 1, 1)
        programs = list(range(grid[0]))
        if self.fault in ("twice", "missing"):
            programs = [*programs, 0] if self.fault == "twice" else programs[:-1]
        for number, program in enumerate(programs):
            self.memory.program = number
            interp.interpreter_builder.set_grid_idx(program, 0, 0)
            function(**given)

    def _check_options(self, kernel: Any, options: dict[str, Any]) -> None:
        if options.get("enable_fp_fusion") is not False:
            raise RefusedError(
                f"{kernel.__name__} is launched without enable_fp_fusion=False: products may be contracted"
            )

    def call(self, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A device function. An elementary function is one node, after its own trace has shown it to be elementwise."""
        if function.fn.__module__ != ELEMENTARY or function.__name__ == "philox":
            return function.rewrite()(*arguments, **options)
        (x,) = arguments
        name = function.__name__
        if name not in self._elementary:
            self._check_elementwise(name, function)
        return tl.tensor(self.elementwise(name, (x.handle,), tl.float32), x.type)

    def _check_elementwise(self, name: str, function: Any) -> None:
        """Traces an elementary function on two elements; each result must be made from its own."""
        two = np.zeros(2, NODE)
        two["id"], two["row"] = self.nodes.leaf(name, 0, "fp32"), np.arange(2)
        made = function.rewrite()(
            tl.tensor(interp.TensorHandle(two, tl.float32), tl.block_type(tl.float32, [2]))
        ).handle.data
        if made["id"][0] != made["id"][1] or made["row"].tolist() != [0, 1]:
            raise RefusedError(f"{name} is not an elementwise function")
        self._elementary.add(name)
