"""Public names of samebits.ops are functions and classes, whatever is imported, in whatever order, once or again."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

import samebits.ops

NAMES = samebits.ops.__all__
FOLDERS = [name for name in NAMES if f"samebits.ops.{name}" in sys.modules]


def wrong() -> list[str]:
    """Names that stand for a module now."""
    return [name for name in NAMES if isinstance(getattr(samebits.ops, name), ModuleType)]


def test_names_that_a_folder_has_too() -> None:
    assert {"gelu", "attention", "rope", "softmax"} <= set(FOLDERS)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_imported_last_does_not_hide_its_function(name: str) -> None:
    """What the import system does after it has loaded a folder, as late as can be."""
    setattr(samebits.ops, name, sys.modules[f"samebits.ops.{name}"])
    assert not wrong()
    assert isinstance(importlib.import_module(f"samebits.ops.{name}"), ModuleType)


def test_a_function_can_still_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samebits.ops, "gelu", len)
    assert samebits.ops.gelu is len


def test_a_hidden_function_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a plain module, as before."""
    monkeypatch.setattr(samebits.ops, "__class__", ModuleType)
    monkeypatch.setattr(samebits.ops, "gelu", sys.modules["samebits.ops.gelu"])
    assert wrong() == ["gelu"]
