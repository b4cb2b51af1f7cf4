"""What a training run logged, step by step, each with the settings that it was made with.

A run that was resumed says its settings anew, and goes on from a checkpoint: what was logged of later steps before is
no part of it any more. Computes nothing again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from samebits.trace.fingerprint import Fingerprint
from samebits.train import events
from samebits.train.observing import FINGERPRINTS, fingerprints

# Of a step's event: what equal runs have equal.
NUMBERS: Final = ("loss", "norm", "norm_after", "rate", "tokens", "without_gradient")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of a run, or where a breach stopped it."""

    numbers: dict[str, Any]
    """Those of its event; the digest of its checkpoint and the breach that stopped it, where there is one."""
    settings: Mapping[str, Any]
    """Settings that decide bits."""
    environment: Mapping[str, Any]


def steps_of(folder: Path) -> dict[int, Step]:
    """The steps of a run, each as it was made last."""
    path = folder / events.NAME
    if not path.is_file():
        raise ValueError(f"{folder}: there is no {events.NAME}; allowed: the folder of a training run")
    log = events.read(folder)
    with _reading(path):
        return _steps(log, path)


def _steps(log: list[dict[str, Any]], path: Path) -> dict[int, Step]:
    found: dict[int, Step] = {}
    start: dict[str, Any] = {}
    for each in log:
        kind = each["event"]
        if kind == "start":
            start = each
            found = {step: made for step, made in found.items() if step <= each["from_step"]}
        elif not start:
            raise ValueError(f"{path}: has a {kind} before any start; allowed: the log of a training run")
        elif kind == "step":
            found[each["step"]] = _made(start, {name: each[name] for name in NUMBERS})
        elif kind == "checkpoint" and each["step"] in found:
            if not isinstance(each["digest"], str):
                raise TypeError(f"digest is {each['digest']!r:.40}, and no text")
            found[each["step"]].numbers["checkpoint"] = each["digest"]
        elif kind == "breach":
            # One that was seen before the first step stopped that one.
            step = max(1, each["step"])
            made = found.setdefault(step, _made(start, {}))
            made.numbers["breach"] = f"{each['contract']}: {each['message']}"
    return found


def _made(start: Mapping[str, Any], numbers: dict[str, Any]) -> Step:
    # Where a run went on from is said among its settings, and is none.
    settings = {key: value for key, value in start["settings"].items() if not key.startswith("position.")}
    return Step(numbers=numbers, settings=settings, environment=dict(start.get("environment", {}).items()))


def fingerprints_of(folder: Path) -> dict[int, dict[str, Fingerprint]]:
    """Those of every step of which a run kept some."""
    with _reading(folder / FINGERPRINTS):
        return dict(fingerprints(folder))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What is wrong inside of a file is told with the file's name."""
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        message = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: cannot be read: {message}; allowed: lines as samebits wrote them") from error
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path}: cannot be read: {error}; allowed: lines as samebits wrote them") from error
