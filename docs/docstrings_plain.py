"""Docstrings are plain text: `table[i][j]` in one of them is no link. An extension of what reads them for the site."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class PlainBrackets(Extension):
    """Two brackets side by side stay brackets."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("][", "]\\[")
