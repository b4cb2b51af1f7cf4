"""Small questions over bytes whose answers a program can judge: a model of random weights can begin to learn them.

A token is a byte. A question is a function of task, seed, batch and number; a reward is a function of answer and
completion. Knows no model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

VOCABULARY: Final = 256
STOP: Final = ord("\n")
# What a digit is worth where another digit is due: it makes the first steps of a random model visible.
RIGHT_KIND: Final = 0.25
DIGITS: Final = frozenset(b"0123456789")


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A prompt, and the bytes that answer it, the stop among them."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def _sorting(draw: bytes) -> tuple[str, str]:
    digits = [str(each % 10) for each in draw[1 : 4 + draw[0] % 3]]
    return f"sort {''.join(digits)}=", "".join(sorted(digits))


def _addition(draw: bytes) -> tuple[str, str]:
    left, right = draw[0] % 50, draw[1] % 50
    return f"{left}+{right}=", str(left + right)


TASKS: Final[dict[str, Callable[[bytes], tuple[str, str]]]] = {"sorting": _sorting, "addition": _addition}
# The most tokens that any answer above takes, and two in which a model may ramble on.
LONGEST_COMPLETION: Final = 8


def questions(task: str, seed: int, batch: int, count: int) -> list[Question]:
    """`count` questions of one batch, the same wherever and whenever they are asked for."""
    if task not in TASKS:
        raise ValueError(f"rl: task is {task!r}; allowed: {', '.join(TASKS)}")
    made = []
    for number in range(count):
        prompt, answer = TASKS[task](hashlib.sha256(f"{task} {seed} {batch} {number}".encode()).digest())
        made.append(Question(prompt=tuple(prompt.encode()), answer=(*answer.encode(), STOP)))
    return made


def reward(question: Question, completion: Sequence[int]) -> float:
    """0 to 1: right bytes at their places, out of the longer of answer and completion; 1 for the answer alone."""
    points = 0.0
    for due, found in zip(question.answer, completion, strict=False):
        if found == due:
            points += 1.0
        elif due in DIGITS and found in DIGITS:
            points += RIGHT_KIND
    return points / max(len(question.answer), len(completion))
