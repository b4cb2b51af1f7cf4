"""The perplexity of SmolLM2 with other weights, on text of the Python standard library that calibration never saw."""

from __future__ import annotations

import math
import pydoc_data.topics
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from samebits.model.batch import Batch
from samebits.model.loading import Loaded
from samebits.model.model import Model
from samebits.post.calibration import LENGTH, sequences_of, squares, texts_of
from samebits.post.feedback import Feedback, feedback_of
from samebits.post.grouped import Grouped
from samebits.post.quantizing import Job, quantized

LIBRARY = Path(pydoc_data.topics.__file__).parents[1]
# Sources and pages of the manual.
MODULES = ("textwrap", "statistics", "heapq", "shlex")
PAGES = ("assignment", "exprlists", "numbers", "typesseq")


def held_out(loaded: Loaded, sequences: int, length: int = LENGTH) -> list[list[int]]:
    """Beginnings of texts, manual and sources in turn."""
    manual = "\n".join(pydoc_data.topics.topics[page] for page in PAGES)
    texts = [manual, *((LIBRARY / f"{name}.py").read_text() for name in MODULES)]
    return [loaded.tokenizer.encode(text)[:length] for text in texts[:sequences]]


def _sources(loaded: Loaded, tokens: int) -> list[list[int]]:
    """Those that are not held out."""
    files = sorted(file for file in LIBRARY.glob("*.py") if file.stem not in MODULES)
    return sequences_of(texts_of(files), loaded.tokenizer, tokens)


def calibration(loaded: Loaded, tokens: int) -> dict[str, Tensor]:
    """What flows into each weight on sources that are not held out."""
    return squares(loaded.model, _sources(loaded, tokens), lambda _: None)


def handed_on(loaded: Loaded, tokens: int) -> dict[str, Feedback]:
    """How columns hand on what they lose, from such sources."""
    return feedback_of(loaded.model, _sources(loaded, tokens), lambda _: None)


def perplexity(model: Model, texts: list[list[int]]) -> float:
    total, count = [], 0
    with torch.no_grad():
        for ids in texts:
            hidden = model.hidden(Batch.of([ids]))
            total += model.logprobs(hidden[:-1], torch.tensor(ids[1:])).tolist()
            count += len(ids) - 1
    return math.exp(-math.fsum(total) / count)


def with_half_weights(loaded: Loaded) -> Model:
    """The 16-bit model that others are compared with."""
    return replace(loaded.model, weights={name: each.half().float() for name, each in loaded.model.weights.items()})


def with_stored_weights(job: Job) -> Model:
    """The model as a job stores it."""
    found = {}
    for name in job.loaded.model.weights:
        each = quantized(job, name)
        found[name] = each.numbers() if isinstance(each, Grouped) else each.float()
    return replace(job.loaded.model, weights=found)
