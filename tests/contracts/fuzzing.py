"""Damaged contracts, by number: each is a real one with a few faults of one of many kinds, the same on every machine.

`run` loads a range of them and says what happened; it knows nothing of how the loader works."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import samebits.ops
from samebits.contracts.strict_yaml import ContractError

SENTINEL = "samebits_fuzz_sentinel"
SECONDS = 2.0
PATH = Path("damaged/contract.yaml")
CONTRACTS = [path.read_text() for path in sorted(Path(samebits.ops.__path__[0]).glob("*/contract.yaml"))]

LAUGHS = (
    "a: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b, *b]\nd: &d [*c, *c, *c, *c]\ne: [*d, *d, *d, *d]\n"
)
TOKENS = (
    ": ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "# ",
    "? ",
    "| ",
    "> ",
    "'",
    '"',
    "\n",
    "\n  ",
    "\t",
    "---\n",
    "...\n",
    "%YAML 1.1\n",
    "&anchor ",
    "*anchor ",
    "<<: ",
    "! ",
    "!!str ",
    "!!int ",
    "!!float ",
    "!!binary ",
    "!!set ",
    "!!omap ",
    "!!timestamp ",
    f"!!python/object/apply:{SENTINEL}.run [1] ",
    f"!!python/name:{SENTINEL}.run ",
    f"!!python/module:{SENTINEL} ",
    f'"{SENTINEL}:run"',
    f'{{name: "{SENTINEL}:run"}}',
    f"!!python/object/new:{SENTINEL}.run [] ",
    "null",
    "~",
    "true",
    "false",
    "yes",
    "0",
    "-0",
    "-1",
    "010",
    "0x10",
    "1:30",
    "1_000",
    "1e-5",
    "1e999",
    "-1e999",
    ".inf",
    ".nan",
    "9" * 40,
    "9" * 5000,
    "1e" + "9" * 400,
    "0." + "0" * 400 + "1",
    "2147483648",
    "1..1048576",
    "1..99999999999",
    "0..4",
    "5..1",
    '"1..40"',
    '"16, 32"',
    "[]",
    "{}",
    "[[]]",
    "[{}]",
    '""',
    '" "',
    '"new\\nline"',
    '"\\e[31m"',
    '"\\0"',
    "\0",
    "\x1b",
    "\x85",
    "\u2028",
    "\ufeff",
    "\ufffe",
    "é",
    "漢字",
    "🙂",
    "\u202e",
    "٣",
    "contract",
    "prefix",
    "version",
    "requires_level",
    "refs",
    "depends_on",
    "numerics",
    "equations",
    "subjects",
    "domains",
    "obligations",
    "tests",
    "mutants",
    "proofs",
    "changes",
    "shapes",
    "recipes",
    "formats",
    "seeds",
    "draw",
    "sizes",
    "calls",
    "predicate",
    "name",
    "tolerance",
    "kind",
    "value",
    "why",
    "bound",
    "bitwise",
    "ulp",
    "abs",
    "rel",
    "derived",
    "order",
    "sum1",
    "examples",
    "33x257 normal float32 seed 1",
    "0x0 normal float32 seed 1",
    "float32",
    "normal",
    "SM-OB1",
    "SM-MU1",
    "MM-S1",
    "FALSIFY-SM-001",
    "../../etc/passwd",
    "__class__",
    "module:attribute",
    "os:system",
)

Damage = Callable[[random.Random, str], str]


def _at(draw: random.Random, text: str) -> int:
    return draw.randrange(len(text) + 1)


def _splice(draw: random.Random, text: str) -> str:
    place = _at(draw, text)
    return text[:place] + draw.choice(TOKENS) + text[place:]


def _replace_word(draw: random.Random, text: str) -> str:
    words = list(re.finditer(r"[\w.-]+", text))
    chosen = draw.choice(words) if words else None
    return text if chosen is None else text[: chosen.start()] + draw.choice(TOKENS) + text[chosen.end() :]


def _cut(draw: random.Random, text: str) -> str:
    start = _at(draw, text)
    return text[:start] + text[start + draw.choice((1, 2, 5, 40)) :]


def _truncate(draw: random.Random, text: str) -> str:
    return text[: _at(draw, text)]


def _on_lines(change: Callable[[random.Random, list[str]], None]) -> Damage:
    def damage(draw: random.Random, text: str) -> str:
        lines = text.splitlines(keepends=True) or [""]
        change(draw, lines)
        return "".join(lines)

    return damage


def _swap_lines(draw: random.Random, lines: list[str]) -> None:
    first, second = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]


def _repeat_line(draw: random.Random, lines: list[str]) -> None:
    lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))


def _drop_line(draw: random.Random, lines: list[str]) -> None:
    del lines[draw.randrange(len(lines))]


def _indent_line(draw: random.Random, lines: list[str]) -> None:
    place = draw.randrange(len(lines))
    lines[place] = " " * draw.choice((1, 2, 7)) + lines[place] if draw.random() < 0.5 else lines[place].lstrip()


def _rename_key(draw: random.Random, text: str) -> str:
    keys = list(re.finditer(r"[\w-]+(?=:)", text))
    if not keys:
        return text
    key = draw.choice(keys)
    new = draw.choice((key[0] + "s", key[0][:-1], key[0].upper(), draw.choice(keys)[0], f'"{key[0]}"', "<<", ""))
    return text[: key.start()] + new + text[key.end() :]


def _nest(draw: random.Random, text: str) -> str:
    place, depth = _at(draw, text), draw.choice((5, 13, 100, 3000))
    opening, closing = draw.choice((("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("a:\n ", "")))
    return text[:place] + opening * depth + closing * draw.choice((0, depth)) + text[place:]


def _laugh(draw: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    lines.insert(draw.randrange(len(lines) + 1), LAUGHS)
    return "".join(lines)


def _repeat_much(draw: random.Random, text: str) -> str:
    """A long file of one token: whatever is quadratic shows."""
    place = _at(draw, text)
    return text[:place] + draw.choice(TOKENS)[:40] * draw.choice((50, 500, 2000)) + text[place:]


# Kind of damage and how often it comes; the last ones make long files.
DAMAGES: dict[Damage, int] = {
    _splice: 20,
    _replace_word: 25,
    _cut: 12,
    _truncate: 4,
    _on_lines(_swap_lines): 8,
    _on_lines(_repeat_line): 8,
    _on_lines(_drop_line): 10,
    _on_lines(_indent_line): 8,
    _rename_key: 12,
    _nest: 4,
    _laugh: 1,
    _repeat_much: 2,
}


def damaged(number: int) -> bytes:
    """The contract of that number."""
    draw = random.Random(number)
    text = draw.choice(CONTRACTS)
    for damage in draw.choices(list(DAMAGES), list(DAMAGES.values()), k=draw.choice((1, 1, 1, 2, 3))):
        text = damage(draw, text)
    raw = bytearray(text.encode("utf-8"))
    if draw.random() < 0.15 and raw:
        for _ in range(draw.choice((1, 1, 4))):
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    return bytes(raw)


@dataclass(slots=True)
class Outcome:
    """What a range of damaged contracts came to."""

    loaded: int = 0
    refused: int = 0
    kinds: set[str] = field(default_factory=set)
    """Refusals without the values they name."""
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)
    """Anything but a contract or a ContractError in one line that names the file."""


def _stop(signal_number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def run(load: Callable[[bytes, Path], Any], numbers: Iterable[int]) -> Outcome:
    """Loads each. Seconds are the process's own, so that a busy machine makes none of them slow."""
    outcome, before = Outcome(), signal.signal(signal.SIGVTALRM, _stop)
    try:
        for number in numbers:
            raw, start = damaged(number), time.process_time()
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            try:
                load(raw, PATH)
                outcome.loaded += 1
            except ContractError as error:
                outcome.refused += 1
                _judge(outcome, number, str(error))
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                outcome.failures.append(f"number {number}: {type(error).__name__}: {error}")
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            outcome.slowest = max(outcome.slowest, time.process_time() - start)
    finally:
        signal.signal(signal.SIGVTALRM, before)
    return outcome


def _judge(outcome: Outcome, number: int, message: str) -> None:
    said = re.fullmatch(rf"{re.escape(str(PATH))}:[1-9][0-9]*: (.+)", message)
    if said is None or not message.isprintable():
        outcome.failures.append(f"number {number}: not one line with file and line: {message!r}")
    else:
        # The words before the first value; what leads to a key is no part of them.
        words = re.sub(r"^(?:[^ ]+: )+", "", said[1])
        outcome.kinds.add(re.split(r"[^A-Za-z_ ]", words)[0][:40])


def sentinel(folder: Path) -> Path:
    """Writes a module that leaves a mark when it is imported or called; gives the mark's path."""
    mark = folder / "it_ran"
    (folder / f"{SENTINEL}.py").write_text(
        f"from pathlib import Path\nPath({str(mark)!r}).touch()\n\n\ndef run(*_):\n    Path({str(mark)!r}).touch()\n"
    )
    return mark
