"""What C++ says, without comments and layout, and the part of it that one architecture's compiler is given.

Only conditions that are one `defined` of a macro which no compiler of that architecture defines are decided; every
other one is kept as it is written, with all its branches. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

NEVER_DEFINED: Final = {
    "x86-64": frozenset({"SAMEBITS_NEON", "__aarch64__"}),
    "aarch64": frozenset({"__x86_64__", "__AVX2__", "__AVX512F__"}),
}
"""By architecture: what these guard is compiled for another one. native/sources.py has the flags."""

INCLUDE: Final = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
# A string or character is kept as it is, so that what looks like a comment inside stays.
_TOKENS = re.compile(
    r'R"(?P<raw>[^(\s]*)\(.*?\)(?P=raw)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/|\\\n', re.DOTALL
)
_CONDITIONAL = re.compile(r"# ?(ifdef|ifndef|if|elif|else|endif)\b ?(.*)")
_DEFINED = re.compile(r"(!?) ?defined ?\(? ?(\w+) ?\)?")


def cpp_text(text: str, architecture: str = "") -> str:
    """C++ without comments; white space is one blank, and a directive has its line.

    With an architecture, what is compiled there; without one, all of it."""
    lines = (" ".join(line.split()) for line in _TOKENS.sub(_kept, text).splitlines())
    chosen = _chosen((line for line in lines if line), NEVER_DEFINED.get(architecture, frozenset()))
    # A directive ends with its line; all else may be broken anywhere.
    return "".join(f"\n{words}\n" if words.startswith("#") else f"{words} " for words in chosen)


def _kept(match: re.Match[str]) -> str:
    found = match.group()
    return " " if found.startswith(("/", "\\")) else found


@dataclass
class _Conditional:
    """One #if up to its #endif."""

    written: bool = False
    """A branch whose condition was kept has been written, so #else and #endif are too."""
    settled: bool = False
    """A branch that is always compiled was met: no later one is."""
    compiled: bool = True
    """The branch at hand."""


def _chosen(lines: Iterator[str], never: frozenset[str]) -> Iterator[str]:
    """The lines that are compiled where none of these macros is defined, with the conditions that stay open."""
    around: list[_Conditional] = []
    for line in lines:
        directive = _CONDITIONAL.fullmatch(line)
        if directive is None:
            if all(each.compiled for each in around):
                yield line
            continue
        word, condition = directive.groups()
        if word.startswith("if"):
            around.append(_Conditional())
        elif not around:
            yield line
            continue
        outside = all(each.compiled for each in around[:-1])
        said = _branch(around[-1], word, condition, never)
        if said and outside:
            yield said
        if word == "endif":
            around.pop()


def _branch(whole: _Conditional, word: str, condition: str, never: frozenset[str]) -> str:
    """Turns to the next branch; the directive to write for it, or ""."""
    if word == "endif":
        return "#endif" if whole.written else ""
    value = None if word == "else" else _value(word, condition, never)
    whole.compiled = not whole.settled and value is not False
    if not whole.compiled:
        return ""
    if word == "else" or value:
        whole.settled = True
        return "#else" if whole.written else ""
    first, whole.written = not whole.written, True
    return f"#{word} {condition}" if not first or word != "elif" else f"#if {condition}"


def _value(word: str, condition: str, never: frozenset[str]) -> bool | None:
    """Whether a condition is met, or None where that is not known."""
    defined = _DEFINED.fullmatch(condition if word in ("if", "elif") else f"defined({condition})")
    if defined is None or defined[2] not in never:
        return None
    return bool(defined[1]) or word == "ifndef"
