"""A JSON object from a file that anyone may have made: what it may cost is known before it is parsed.

Knows no key. Every refusal is one line that names the file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from samebits.records.plain_file import read_plain

# The largest published tokenizer.json has some 33 MiB and two million items; a config has a thousandth of it.
MOST_BYTES: Final = 2**26
MOST_ITEMS: Final = 2**22
MOST_DEPTH: Final = 32


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """The object in the file. Twice the same key, deep nesting, or more items than a real file has: refused."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file; allowed: a file of JSON")
    data = read_plain(path, most_bytes)
    items = sum(data.count(sign) for sign in (b",", b"[", b"{"))
    if items > MOST_ITEMS:
        raise ValueError(f"{path}: has up to {items} items; allowed: at most {MOST_ITEMS}")
    return parse_json(data, str(path))


def parse_json(data: bytes, name: str) -> dict[str, Any]:
    """The object that the bytes are."""
    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_without_doubles)
    except RecursionError:
        raise ValueError(f"{name}: is nested too deep; allowed: at most {MOST_DEPTH} deep") from None
    except ValueError as error:
        raise ValueError(f"{name}: {' '.join(str(error).split())[:200]}; allowed: a JSON object") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name}: is a {type(found).__name__}; allowed: a JSON object")
    if _depth(found) > MOST_DEPTH:
        raise ValueError(f"{name}: is nested too deep; allowed: at most {MOST_DEPTH} deep")
    return found


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"the key {twice[:60]!r} is there twice")
    return found


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            break
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
    return depth


def to_json(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
