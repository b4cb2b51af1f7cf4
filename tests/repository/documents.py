"""What is in the documents: pages, prose, code blocks, figures. Judges nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PAGES = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md"), *PROJECT.glob("benchmarks/*.md")])
# For readers; the notes are a diary, and speak for the day on which they were written.
FOR_READERS = [page for page in PAGES if page.parent.name != "benchmarks"]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"^    .*$", re.MULTILINE)
_COSTS = re.compile(r"<!-- costs:.*?<!-- end of costs -->", re.DOTALL)
_CODE = re.compile(r"`([^`]*)`")
_VERSION = re.compile(r"\b(?:torch|triton|python|gcc|clang|z3-solver|glibc|transformers)\s\d+(?:\.\d+)*", re.IGNORECASE)
_NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_UNIT = (
    r"(?:%|ms|µs|us|ns|s|(?:micro|milli)?seconds?|minutes?|hours?|times|tokens a second|[TGM]?FLOP/s|[TGM]B/s)(?![\w/])"
)
_RIVAL = r"of (?:torch|transformers|stock|cuBLAS|cuDNN|flash|MKL)"
_FIGURE = re.compile(rf"(?<![\w.,^/-])(?:{_NUMBER}(?=\s?{_UNIT}|\s{_RIVAL})|\d+\.\d+(?:e[+-]?\d+)?(?!\w|\.\d))")


@dataclass(frozen=True, slots=True)
class Block:
    """Lines that are not prose: fenced, with their language, or indented (`text`)."""

    language: str
    text: str


def name_of(page: Path) -> str:
    return page.relative_to(PROJECT).as_posix() if page.is_relative_to(PROJECT) else page.name


def blocks(text: str) -> list[Block]:
    fenced = [Block(language or "text", body) for language, body in _FENCE.findall(text)]
    rest = _FENCE.sub("", text)
    return fenced + [Block("text", line.strip()) for line in _INDENTED.findall(rest)]


def inline_code(text: str) -> list[str]:
    """What stands between single backquotes, lines joined."""
    return [" ".join(code.split()) for code in _CODE.findall(_FENCE.sub("", text))]


def paragraphs(text: str) -> list[str]:
    """Prose and tables, without blocks and without the section that a script writes."""
    plain = _INDENTED.sub("", _FENCE.sub("", _COSTS.sub("", text)))
    return [part for part in re.split(r"\n\s*\n", plain) if part.strip()]


def figures(paragraph: str) -> list[str]:
    """Numbers that look measured: with a decimal point, or a unit of time, speed or ratio. No code, no versions."""
    return _FIGURE.findall(_VERSION.sub("", _CODE.sub("", re.sub(r"<!--.*?-->", "", paragraph, flags=re.DOTALL))))
