"""What is evaluated: questions with choices and texts, from local files, as documents with the pairs to be scored.

Metrics are those of lm-evaluation-harness by name and formula. Knows no engine."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeGuard

import numpy as np

from samebits.infer.scoring import Pair, rolling
from samebits.model.json_file import parse_json
from samebits.model.tokenizer import Tokenizer
from samebits.numerics.elementary import evaluate
from samebits.records.plain_file import read_plain

MOST_BYTES: Final = 2**30
# What stands between a question and a choice.
DELIMITER: Final = " "
MOST_CHOICES: Final = 64
HALF: Final = re.compile("[\ud800-\udfff]")
LOG_2: Final = 0.6931471805599453


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One line of a file: what is scored, and what its metrics need."""

    pairs: tuple[Pair, ...]
    answer: int = 0
    """The number of the right choice."""
    sizes: tuple[int, ...] = ()
    """Of choices: their characters. Of a text: its tokens, words and bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A file, its documents, and how their loglikelihoods become metrics."""

    name: str
    kind: str
    digest: str
    documents: tuple[Document, ...]
    metrics: Callable[[Sequence[Document], Sequence[Sequence[float]]], dict[str, float]]


def pair_of(words: Tokenizer, context: str, continuation: str, *, special: bool = False) -> Pair:
    """A pair of texts as tokens: spaces that end the context belong to the continuation, both are cut into tokens as
    one text, and where there is no context the token that ends texts stands for it."""
    spaces = len(context) - len(context.rstrip())
    context, continuation = context[: len(context) - spaces], context[len(context) - spaces :] + continuation
    if not context:
        tokens = words.encode(continuation, special=special)
        first = prefix_of(words)
        cut = 1 if tokens[:1] == [first] else 0
        return Pair(context=(first,), continuation=tuple(tokens[cut:]))
    before, whole = (words.encode(each, special=special) for each in (context, context + continuation))
    return Pair(context=tuple(before), continuation=tuple(whole[len(before) :]))


def prefix_of(words: Tokenizer) -> int:
    """The token that stands before a text that has nothing before it: what begins texts, else what ends them."""
    found = words.bos if words.bos is not None else next(iter(words.eos), None)
    if found is None:
        raise ValueError("evaluate: the tokenizer has no token that begins or ends a text; allowed: one that has")
    return found


def multiple_choice(path: Path, words: Tokenizer, longest: int, limit: int | None) -> Task:
    """A line of JSON each: question, choices, answer (the choice itself, or its number from 0)."""
    data = read_plain(path, MOST_BYTES)
    documents = [
        _question(value, f"{path}:{number}", words, longest) for number, value in _lines(data, str(path), limit)
    ]
    return _task(path, "multiple_choice", data, documents, choice_metrics)


def text(path: Path, words: Tokenizer, longest: int, limit: int | None) -> Task:
    """A text file is one document; of a .jsonl file each line has one as its "text"."""
    data = read_plain(path, MOST_BYTES)
    if path.suffix == ".jsonl":
        texts = [_text_of(value, f"{path}:{number}") for number, value in _lines(data, str(path), limit)]
    else:
        texts = [_decoded(data, str(path))]
    documents = []
    for each in texts:
        tokens = words.encode(each, special=False)
        sizes = (len(tokens), len(re.split(r"\s+", each)), len(each.encode()))
        documents.append(Document(pairs=tuple(rolling(tokens, prefix_of(words), longest)), sizes=sizes))
    return _task(path, "text", data, [each for each in documents if each.pairs], text_metrics)


def _task(path: Path, kind: str, data: bytes, documents: list[Document], metrics: Any) -> Task:
    if not documents:
        raise ValueError(f"{path}: holds no document; allowed: at least one")
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return Task(name=path.stem, kind=kind, digest=digest, documents=tuple(documents), metrics=metrics)


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: byte {error.start} is no UTF-8; allowed: UTF-8 text") from error


def _lines(data: bytes, name: str, limit: int | None) -> list[tuple[int, dict[str, Any]]]:
    """Objects with the numbers of their lines; empty lines are none."""
    there = [(number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    return [(number, parse_json(line, f"{name}:{number}")) for number, line in there[:limit]]


def _text_of(value: dict[str, Any], where: str) -> str:
    found = value.get("text")
    if not _whole(found):
        raise ValueError(f"{where}: text is {found!r:.60}; allowed: text")
    return found


def _whole(value: Any) -> TypeGuard[str]:
    """Whether a value is text that can be cut into tokens: JSON can write half a character, as \\ud800."""
    return isinstance(value, str) and not HALF.search(value)


def _question(value: dict[str, Any], where: str, words: Tokenizer, longest: int) -> Document:
    question, choices, answer = value.get("question"), value.get("choices"), value.get("answer")
    if not _whole(question):
        raise ValueError(f"{where}: question is {question!r:.60}; allowed: text")
    texts = isinstance(choices, list) and all(_whole(each) and each for each in choices)
    if not texts or not isinstance(choices, list) or not 2 <= len(choices) <= MOST_CHOICES:
        raise ValueError(f"{where}: choices is {choices!r:.60}; allowed: a list of 2 to {MOST_CHOICES} texts")
    if isinstance(answer, str) and answer in choices:
        answer = choices.index(answer)
    if type(answer) is not int or not 0 <= answer < len(choices):
        allowed = f"a choice, or its number, 0 to {len(choices) - 1}"
        raise ValueError(f"{where}: answer is {answer!r:.60}; allowed: {allowed}")
    try:
        pairs = tuple(pair_of(words, question, f"{DELIMITER}{choice}").within(longest) for choice in choices)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return Document(pairs=pairs, answer=answer, sizes=tuple(map(len, choices)))


def choice_metrics(documents: Sequence[Document], found: Sequence[Sequence[float]]) -> dict[str, float]:
    """acc: the likeliest choice is the right one. acc_norm: the same of loglikelihoods per character."""
    right: dict[str, list[float]] = {"acc": [], "acc_norm": []}
    for document, likelihoods in zip(documents, found, strict=True):
        by_size = [value / size for value, size in zip(likelihoods, document.sizes, strict=True)]
        for name, values in (("acc", list(likelihoods)), ("acc_norm", by_size)):
            right[name].append(float(values.index(max(values)) == document.answer))
    means = {name: math.fsum(values) / len(values) for name, values in right.items()}
    return {
        key: value
        for name, mean in means.items()
        for key, value in ((name, mean), (f"{name}_stderr", _standard_error(mean, len(documents))))
    }


def _standard_error(mean: float, count: int) -> float:
    """Of a mean of zeros and ones, from the variance of a sample; 0 of a single one."""
    return math.sqrt(mean * (1.0 - mean) / (count - 1)) if count > 1 else 0.0


def text_metrics(documents: Sequence[Document], found: Sequence[Sequence[float]]) -> dict[str, float]:
    """Of all texts together: perplexity by token, by word and by byte, and bits per byte; inf beyond float32."""
    total = math.fsum(value for likelihoods in found for value in likelihoods)
    tokens, words, size = (sum(document.sizes[place] for document in documents) for place in range(3))
    return {
        "perplexity": _exp(-total / tokens),
        "word_perplexity": _exp(-total / words),
        "byte_perplexity": _exp(-total / size),
        "bits_per_byte": -total / size / LOG_2,
        "loglikelihood": total,
        "tokens": float(tokens),
    }


def _exp(value: float) -> float:
    """By the one exponential that has the same bits everywhere, in float32; inf where that ends."""
    return float(evaluate("exp", np.array([value], np.float32))[0])
