"""In which block of a model a program is, forward and backward, and what flows back over the borders between blocks.

Hooks of torch, for as long as the block lasts: a module's forward pass is told by the module, its backward pass by the
node that made its output. Knows no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

OUTSIDE: Final = ""
_MARK: Final = "samebits block"
Border = Callable[[str, Tensor], None]
"""Told of a block and of the gradient that flows back into its output."""


class Blocks:
    """Where the program is now."""

    def __init__(self) -> None:
        self._open: list[nn.Module] = []
        self._backward: nn.Module | None = None
        self._names: dict[nn.Module, str] = {}

    @property
    def now(self) -> str:
        """The innermost block by its name in the outermost module that was called; empty outside of all."""
        module = self._open[-1] if self._open else self._backward
        return OUTSIDE if module is None else self.name(module)

    def name(self, module: nn.Module) -> str:
        return self._names.get(module) or type(module).__name__

    def enter(self, module: nn.Module) -> None:
        if not self._open:
            self._names.update({each: name for name, each in module.named_modules() if name})
        self._open.append(module)
        self._backward = None

    def leave(self, module: nn.Module, output: Any, border: Border | None) -> None:
        self._open.pop()
        node = output.grad_fn if isinstance(output, Tensor) else None
        # Of modules that hand on the same tensor, the innermost is where it was made.
        known: Any = {} if node is None else node.metadata
        if node is None or _MARK in known:
            return
        known[_MARK] = True

        def flows(gradients: tuple[Tensor | None, ...]) -> None:
            self._backward = module
            if border is not None and gradients and gradients[0] is not None:
                border(self.name(module), gradients[0])

        node.register_prehook(flows)

    def step_ended(self) -> None:
        """What comes now belongs to no block, and modules of this step may go."""
        self._backward = None
        self._names.clear()


@contextmanager
def following_blocks(border: Border | None = None) -> Iterator[Blocks]:
    """Within the block it is known where the program is."""
    blocks = Blocks()
    handles = [
        register_module_forward_pre_hook(lambda module, _: blocks.enter(module)),
        register_module_forward_hook(lambda module, _, output: blocks.leave(module, output, border), always_call=True),
    ]
    try:
        yield blocks
    finally:
        for handle in handles:
            handle.remove()
