"""Where an operation was asked for: the path through the modules whose forward is running, or the gradient's name.

Looks at the Python stack, and only when somebody wants to be told."""

from __future__ import annotations

import sys
from itertools import pairwise

import torch
from torch import nn


def running_modules() -> list[nn.Module]:
    """Modules with a method on the stack, outermost first."""
    found: list[nn.Module] = []
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and (not found or found[-1] is not owner):
            found.append(owner)
        frame = frame.f_back  # type: ignore[assignment]
    return found[::-1]


def path_of(modules: list[nn.Module]) -> str:
    """LlamaForCausalLM.model.layers.0.mlp: each module by its name in the one before it."""
    if not modules:
        return ""
    path = type(modules[0]).__name__
    for parent, child in pairwise(modules):
        name = next((name for name, module in parent.named_modules() if module is child), type(child).__name__)
        path = f"{path}.{name}" if name else path
    return path


def place() -> str:
    """In words, or "" where nothing is known."""
    node = torch._C._current_autograd_node()
    if node is not None:
        return f"in the gradient {node.name()}"
    path = path_of(running_modules())
    return f"in {path}" if path else ""


def shapes(arguments: object) -> str:
    """float32[3, 4], int64[3]: every tensor among the arguments, lists included."""
    found: list[str] = []

    def visit(value: object) -> None:
        if isinstance(value, torch.Tensor):
            found.append(f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}")
        elif isinstance(value, (list, tuple)):
            for each in value:
                visit(each)
        elif isinstance(value, dict):
            visit(tuple(value.values()))

    visit(arguments)
    return ", ".join(found) or "no tensor"
