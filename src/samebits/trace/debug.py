"""The debug mode: at the border of every kernel its buffers, at every copy its sizes, at every block what flows back.

    with debug.checking() as findings:
        trainer.step()
    for finding in findings: ...

Fresh memory is handed out between zones and filled with a pattern, so that a write beside a buffer and a read of what
nobody wrote are seen at the kernel that did it (C-BUFSIZE-001, C-GPUINIT-001); a few elements of every product are
computed again (C-GEMMARGS-001). Changes no bit of a result; takes several times as long. Knows operators by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from samebits.trace.blocks import Blocks, following_blocks
from samebits.trace.findings import Finding, Findings
from samebits.trace.guards import Damage, Guards, unwritten
from samebits.trace.modules import sampled
from samebits.trace.products import wrong_product
from samebits.trace.transfers import caller

BUFFERS: Final = "C-BUFSIZE-001"
PRODUCTS: Final = "C-GEMMARGS-001"
ZEROS: Final = "C-GPUINIT-001"
ACTIVATIONS: Final = "C-EMBED-GRAD-001"
# The square of a larger number is no float32: the second moment of an optimizer overflows.
LARGEST_GRADIENT: Final = 2.0**64

_aten = torch.ops.aten
_EMPTY: Final = (
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
)
_FILLED: Final = (
    _aten.zeros.default,
    _aten.zeros_like.default,
    _aten.new_zeros.default,
    _aten.full.default,
    _aten.clone.default,
    _aten._to_copy.default,
)
_KEYS: Final = {
    device: torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, device.upper())) for device in ("cpu", "cuda")
}


class Checking(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of torch in its thread."""

    def __init__(self, findings: Findings, blocks: Blocks) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._findings, self._blocks, self._guards = findings, blocks, Guards()
        self._kernels: list[tuple[str, list[Tensor]]] = []
        """Those that run, outermost first, with the memory that each asked for."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function.namespace == "samebits":
            return self._kernel(function, args, kwargs)
        if function is _aten.copy_.default:
            self._copy(*args[:2])
        made = function(*args, **kwargs)
        if function in _EMPTY or function in _FILLED:
            return self._placed(made, function in _FILLED)
        return made

    def _placed(self, made: Tensor, written: bool) -> Tensor:
        dense = made.numel() == 0 or made.numel() == 1 + sum(
            (size - 1) * stride for size, stride in zip(made.shape, made.stride(), strict=True)
        )
        if not made.is_floating_point() or made.device.type not in _KEYS or not dense:
            return made
        placed = self._guards.placed(made, self._kernels[-1][0] if self._kernels else "", written=written)
        if self._kernels:
            self._kernels[-1][1].append(placed)
        return placed

    def _kernel(self, function: Any, args: Any, kwargs: Any) -> Any:
        name = function._schema.name.partition("::")[2]
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        keys = _KEYS.get(given[0].device.type) if given else None
        if keys is None:
            # Shapes without numbers: there is no memory to check.
            return function(*args, **kwargs)
        before = args[0].clone() if name == "gemm_accumulate_" else None
        self._kernels.append((name, []))
        try:
            with self:
                result = function.redispatch(keys, *args, **kwargs)
        finally:
            _, made = self._kernels.pop()
        results = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        # First: why a product is wrong tells more than where it was written.
        self._product(name, args, result, before)
        for damage in self._guards.damage([*given, *made, *results]):
            self._tell("kernel", self._at(name), BUFFERS, _beside(damage))
        for each in results:
            if count := unwritten(each):
                shape = "x".join(map(str, each.shape))
                self._tell(
                    "kernel", self._at(name), ZEROS, f"{count} elements of its result {shape} were never written"
                )
        return result

    def _product(self, name: str, args: Any, result: Any, before: Tensor | None) -> None:
        if name == "gemm":
            wrong = wrong_product(args[0], args[1], result, None, args[2])
        elif name == "gemm_accumulate_":
            wrong = wrong_product(args[1], args[2], args[0], before, None)
        else:
            return
        if wrong:
            self._tell("kernel", self._at(name), PRODUCTS, wrong)

    def _copy(self, into: Tensor, source: Tensor) -> None:
        """A number may be spread; a tensor goes into one of its size."""
        if source.dim() and source.numel() != into.numel():
            sizes = f"{source.numel()} elements {tuple(source.shape)} into {into.numel()} {tuple(into.shape)}"
            self._tell("transfer", caller(), BUFFERS, f"copies {sizes}; allowed: equally many")

    def border(self, block: str, gradient: Tensor) -> None:
        """What flows back into a block's output."""
        found = sampled(gradient)
        if found.not_finite or found.largest > LARGEST_GRADIENT:
            words = f"{found.not_finite} of {found.elements} sampled elements are not finite, the largest is"
            allowed = f"allowed: finite, at most {LARGEST_GRADIENT:.3g}, whose square is a float32"
            message = f"the gradient that flows back into its output: {words} {found.largest:.3g}; {allowed}"
            self._tell("block", block, ACTIVATIONS, message)

    def step_ended(self) -> None:
        """Forget what belonged to a step."""
        self._guards.forget_the_dead()
        self._blocks.step_ended()

    def _at(self, kernel: str) -> str:
        return f"{kernel} in {self._blocks.now}" if self._blocks.now else kernel

    def _tell(self, granularity: str, place: str, contract: str, message: str) -> None:
        self._findings.add(Finding(granularity=granularity, place=place, contract=contract, message=message))


def _beside(damage: Damage) -> str:
    buffer, made = damage.buffer, f", made in {damage.buffer.made_in}" if damage.buffer.made_in else ""
    side = "behind the end" if damage.behind else "before the start"
    return f"writes up to {damage.reach} bytes {side} of a buffer of {buffer.bytes} ({buffer}{made}); allowed: none"


@contextmanager
def checking(findings: Findings | None = None) -> Iterator[Checking]:
    """Within the block everything that this thread does with torch is checked; what is wrong goes to `findings`."""
    found = Findings() if findings is None else findings
    checks: list[Checking] = []
    with following_blocks(lambda block, gradient: checks[0].border(block, gradient)) as blocks:
        checks.append(Checking(found, blocks))
        with checks[0]:
            yield checks[0]
