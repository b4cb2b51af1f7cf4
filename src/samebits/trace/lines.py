"""The text of spans and events: an object of JSON a line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any


def words(kind: Any) -> tuple[str, str]:
    """Of a kind of spans: what stands before and behind the numbers of a span's line."""
    return f'{{"span": {quoted(kind.name)}, "granularity": {quoted(kind.granularity)}', f"{members(kind.facts)}}}\n"


# Names and shapes come again and again.
quoted = lru_cache(maxsize=4096)(json.dumps)


def members(facts: Mapping[str, Any]) -> str:
    """Facts as members of a JSON object, behind others."""
    return "".join([f", {quoted(name)}: {_value(value)}" for name, value in facts.items()])


def _value(value: Any) -> str:
    if type(value) is int:
        return str(value)
    if type(value) is str:
        return quoted(value)
    return json.dumps(plain({"": value})[""], allow_nan=False)


def plain(facts: Any) -> dict[str, Any]:
    """JSON has no NaN and no infinity: those are said in words."""
    return {
        name: repr(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in facts.items()
    }
