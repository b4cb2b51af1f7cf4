"""Runs a stranger's function in the process made for it, exactly as a message describes, and hands back raw bits.

Judges nothing. What it needs of torch it takes before the function is imported, so that a careless patch of torch does
not reach it."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.checker.adversary.frames import CARRIERS, WIDTHS, Array
from samebits.checker.adversary.held import Held
from samebits.checker.adversary.layouts import joined, laid_out
from samebits.checker.adversary.trial import COTANGENT
from samebits.checker.adversary.watching import Watch

OUTPUT = "output"
NO_TENSOR = "one Tensor is needed"
"""How what is said of a result that is none ends."""
_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_grad = torch.autograd.grad
_OwnBackward = torch.autograd.function.BackwardCFunction
LAYING_OUT = {
    f"{name}Backward"
    for name in ("View", "UnsafeView", "ReshapeAlias", "T", "Transpose", "Permute", "Squeeze", "Unsqueeze")
} | {"CloneBackward", "ToCopyBackward", "AliasBackward", "torch::autograd::AccumulateGrad"}
_set_threads = torch.set_num_threads


class ReturnedError(Exception):
    """What came back is no output; the text says why."""


def array_of(tensor: Tensor) -> Array:
    """A tensor's bits, whatever its strides, device or gradient."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in WIDTHS:
        raise ReturnedError(f"returned dtype {dtype}; allowed: {', '.join(WIDTHS)}")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    bits = (
        plain.view(_SIGNED[WIDTHS[dtype]]) if plain.dim() else plain.reshape(1).view(_SIGNED[WIDTHS[dtype]]).reshape(())
    )
    return Array(dtype, bits.numpy().view(CARRIERS[WIDTHS[dtype]]).copy())


def tensor_of(array: Array, device: str = "cpu") -> Tensor:
    """The tensor with these bits."""
    signed = array.bits.view(f"i{array.bits.dtype.itemsize}") if array.bits.dtype != np.uint8 else array.bits
    return torch.from_numpy(signed.copy()).view(getattr(torch, array.dtype)).to(device)


@dataclass(slots=True)
class Executor:
    """One function, its pools, and what it was called with before."""

    function: Callable[..., Any]
    device: str
    vary_threads: bool = True
    pools: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    buffers: dict[tuple[object, ...], Tensor] = field(default_factory=dict)
    held: Held = field(default_factory=lambda: Held(_bytes))
    threads: int = field(default_factory=torch.get_num_threads)
    watch: Watch | None = None

    def load(self, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Keeps one pool of rows and shared arguments; the oldest goes when there are too many."""
        pool = self.pools.pop(header["pool"], {})
        while len(self.pools) >= header["most"]:
            del self.pools[next(iter(self.pools))]
        self.pools[header["pool"]] = pool | {name: tensor_of(array, self.device) for name, array in arrays.items()}
        return {}

    def raw(self, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> tuple[dict[str, Any], dict[str, Array]]:
        """The function on tensors sent along, as plain as can be."""
        given = {name: tensor_of(array, self.device) for name, array in arrays.items()}
        output = self._run({**header, "requires": []}, given, None)[OUTPUT]
        return {}, {OUTPUT: array_of(output)}

    def call(self, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> tuple[dict[str, Any], dict[str, Array]]:
        """One call. What it raises, what it changed that is not its own, how long it took, and every bit of it."""
        pool = self.pools[header["pool"]]
        index = torch.from_numpy(arrays["index"].bits.astype(np.int64)).to(self.device)
        given = self._arguments(header, pool, index)
        watched = dict(given)
        cotangent = None
        if header["backward"]:
            flowing = pool[COTANGENT][index]
            flowing[len(index) - header["silent"] :] = 0
            cotangent = _in_axes(header, laid_out(flowing, header["layouts"].get(COTANGENT, "c")))
            watched |= {COTANGENT: cotangent}
        ours = list(watched.values())
        before = {name: array_of(value).bits for name, value in watched.items()}
        said: dict[str, Any] = {}
        overwritten = (self.held.overwritten(), "between two calls")
        with self._surroundings(header) as watch:
            started = time.perf_counter()
            handed = self._run(header, given, cotangent)
            said["seconds"] = time.perf_counter() - started
        results = _in_one_axis(header, handed)
        if watch is not None:
            said["fingerprint"], said["lines"] = watch.fingerprint(), watch.lines()
        if not overwritten[0]:
            overwritten = (self.held.overwritten(), "by this call")
        said["overwritten"] = overwritten if overwritten[0] else ()
        said["changed"] = [
            name for name, value in watched.items() if not np.array_equal(array_of(value).bits, before[name])
        ]
        # A gradient may be what flowed in, whose memory is the checker's to write to again.
        kept = {name: each for name, each in handed.items() if not any(_share_memory(each, one) for one in ours)}
        self.held.keep(kept)
        said["differentiable"] = results[OUTPUT].requires_grad
        said["own_backward"] = _has_its_own_backward(results[OUTPUT])
        said["shares"] = [name for name, value in given.items() if _share_memory(value, results[OUTPUT])]
        return said, {name: array_of(value) for name, value in results.items()}

    def _arguments(self, header: Mapping[str, Any], pool: Mapping[str, Tensor], index: Tensor) -> dict[str, Tensor]:
        values = {name: pool[name][index] if name in header["rows"] else pool[name] for name in header["order"]}
        first = header["order"][0]
        if header["nudge"] and values[first].is_floating_point():
            values[first] = values[first].clone(memory_format=torch.contiguous_format)
            values[first].view(-1)[-1] = values[first].view(-1)[-1] * 1.25 + 1
        given = self._joined(header, values)
        for name in header["order"]:
            layout = header["layouts"].get(name, "c")
            if name not in given:
                given[name] = (
                    self._reused(name, values[name], layout) if header["reuse"] else laid_out(values[name], layout)
                )
            if name in header["rows"]:
                given[name] = _in_axes(header, given[name])
            if given[name].is_floating_point():
                given[name].requires_grad_(name in header["requires"])
        return {name: given[name] for name in header["order"]}

    def _joined(self, header: Mapping[str, Any], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those that lie in one storage, two and more of one format."""
        found: dict[str, Tensor] = {}
        for rows in (True, False):
            those = {
                name: value
                for name, value in values.items()
                if header["layouts"].get(name) == "j" and (name in header["rows"]) == rows and value.dim()
            }
            for format in {value.dtype for value in those.values()}:
                alike = {name: value for name, value in those.items() if value.dtype == format}
                if len(alike) > 1:
                    found |= joined(alike, rows=rows)
        return found

    def _reused(self, name: str, values: Tensor, layout: str) -> Tensor:
        """The tensor of an earlier call with this name, shape and layout, overwritten where its numbers differ."""
        key = (name, tuple(values.shape), values.dtype, layout)
        if key not in self.buffers:
            while len(self.buffers) > 64:
                del self.buffers[next(iter(self.buffers))]
            self.buffers[key] = laid_out(values, layout if not layout.startswith("e") else "c")
            return self.buffers[key]
        buffer = self.buffers[key]
        buffer.requires_grad_(False) if buffer.is_floating_point() else None
        if _bytes(buffer) != _bytes(values):
            with torch.no_grad():
                buffer.copy_(values)
        return buffer

    def _run(
        self, header: Mapping[str, Any], given: Mapping[str, Tensor], cotangent: Tensor | None
    ) -> dict[str, Tensor]:
        output = self._called(header, given)
        if not isinstance(output, Tensor):
            raise ReturnedError(f"returned {type(output).__name__}; {NO_TENSOR}")
        if output.layout != torch.strided:
            raise ReturnedError(f"returned layout {output.layout}; allowed: torch.strided")
        if self.device == "cuda":
            torch.cuda.synchronize()
        if cotangent is None:
            return {OUTPUT: output}
        if not output.requires_grad:
            raise ReturnedError("returned an output without a gradient, unlike in other calls")
        wanted = [name for name in given if name in header["requires"]]
        inputs, flowing = [given[name] for name in wanted], cotangent.to(output.dtype)
        if header["between"]:
            _grad(output, inputs, flowing, retain_graph=True)
            self._called(header, _others(header, given))
        gradients = _grad(output, inputs, flowing)
        return {OUTPUT: output, **dict(zip(wanted, gradients, strict=True))}

    def _called(self, header: Mapping[str, Any], given: Mapping[str, Tensor]) -> Any:
        by_name = {header["keywords"][name]: value for name, value in given.items() if name in header["keywords"]}
        by_place = [value for name, value in given.items() if name not in header["keywords"]]
        scalars = dict(header["scalars"])
        if header["numbers"]:
            scalars |= {
                name: 2 * value for name, value in (_defaults(self.function) | scalars).items() if type(value) is float
            }
        return self.function(*by_place, **by_name, **scalars)

    @contextlib.contextmanager
    def _surroundings(self, header: Mapping[str, Any]) -> Iterator[Watch | None]:
        """Threads, grad mode, poisoned memory and a watch, all put back afterwards."""
        threads = header["threads"] if self.vary_threads else 0
        with contextlib.ExitStack() as stack:
            if threads:
                _set_threads(threads)
                stack.callback(_set_threads, self.threads)
            if header["mode"] == "no_grad":
                stack.enter_context(torch.no_grad())
            elif header["mode"] == "inference":
                stack.enter_context(torch.inference_mode())
            watch = None
            if header["watch"] or header["poison"]:
                watch = self.watch or Watch(self.function)
                self.watch = watch
                stack.enter_context(watch.on(poison=header["poison"], lines=header["watch"]))
            yield watch if header["watch"] else None


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Numbers that a function takes for itself where nobody says any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {each.name: each.default for each in parameters if each.kind is not each.POSITIONAL_ONLY}


def _has_its_own_backward(output: Tensor) -> bool:
    """Whether every gradient is computed by the function's own code, and torch only lays numbers out or casts them."""
    nodes, seen, own = [output.grad_fn], set[Any](), False
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        own |= isinstance(node, _OwnBackward)
        if not isinstance(node, _OwnBackward) and node.name().rstrip("0123456789") not in LAYING_OUT:
            return False
        nodes += [each for each, _ in node.next_functions]
    return own


def _in_axes(header: Mapping[str, Any], rows: Tensor) -> Tensor:
    """The tensor itself, which may be known to the function, or a view of it with rows in two axes."""
    axes = header["axes"]
    return rows if len(axes) == 1 else rows.view(*axes, *rows.shape[1:])


def _in_one_axis(header: Mapping[str, Any], results: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rows that lay in two axes one after the other."""
    axes = header["axes"]
    if len(axes) < 2:
        return dict(results)
    shape = list(results[OUTPUT].shape)
    if shape[:2] != axes:
        raise ReturnedError(f"returned shape {shape} for rows in two axes {axes}; the first axes must be the rows'")
    by_row = {OUTPUT, *header["rows"]}
    return {name: value.flatten(0, 1) if name in by_row else value for name, value in results.items()}


def _others(header: Mapping[str, Any], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Arguments of the same sizes with other rows: halved, from the last to the first."""
    found = {}
    for name, value in given.items():
        other = value.detach().clone()
        if name in header["rows"]:
            other = other.flip(0) * 0.5 if value.is_floating_point() else other.flip(0)
        found[name] = other.requires_grad_(value.requires_grad)
    return found


def _share_memory(left: Tensor, right: Tensor) -> bool:
    return left.numel() > 0 and left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()


def _bytes(tensor: Tensor) -> bytes:
    return array_of(tensor).bits.tobytes()
