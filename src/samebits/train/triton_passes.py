"""Passes of a run on one GPU, each captured as a CUDA graph when it comes for the second time, and launched again.

A graph is the kernels that the pass launched, on the same memory, hence the same bits: weights, sums, tokens and
targets are in tensors that stay and are written in place. A pass is known again by the lengths of its sequences, its
weights and its sums; one that never comes again is made operator by operator, as everything is that somebody looks into
(a recording, modes, hooks and profilers of torch, forced launches), that pads its rows, or that has a loss or operators
of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samebits.model import Batch, Model
from samebits.model.batch import IGNORED
from samebits.nn.strategy import OURS
from samebits.ops._triton.side_by_side import SideBySide
from samebits.ops.adamw import AdamW
from samebits.ops.grad_norm import grad_norm
from samebits.trace import event
from samebits.train.lanes import ONE_BY_ONE, Cut, Example, Gradients, Losses, minus_logprobs
from samebits.train.ranks import ALONE
from samebits.train.triton_looked_into import looked_into, stepped_around
from samebits.train.triton_sums import LaneSums, summing
from samebits.train.triton_update import PieceUpdate

KEPT: Final = 16
"""Passes that are captured, and models that add to spans of rows: each takes a few megabytes of the host."""
SEEN: Final = 4096
"""Passes that are remembered to have come once."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a pass is known by, beside the weights."""

    summing: Model
    lengths: tuple[int, ...]


class CapturedPasses:
    """The passes of one run, its sums, and the rounded weights that they read."""

    def __init__(self) -> None:
        self._model: Model | None = None
        self._weights: list[tuple[int, torch.dtype]] = []
        self._lanes: list[LaneSums] = []
        """A stack: below are the sums of earlier lanes that are still needed."""
        self._summing: dict[tuple[int, tuple[int, ...] | None], Model] = {}
        self._adding: dict[Model, list[LaneSums]] = {}
        self._of: Model | None = None
        """The model that all of these are of."""
        self._seen: dict[Signature, None] = {}
        self._graphs: dict[Signature, _Pass] = {}
        self._update: PieceUpdate | None = None
        self._pool: Any = None
        self._held = 0
        """Bytes that the graphs keep from everything else."""
        self._capturing = True

    def model(self, base: Model, weights: dict[str, Tensor], dtype: torch.dtype) -> Model:
        """The model of a pass, as `Ranks.model` has it, at the addresses of the last one."""
        kept = self._model
        if kept is None or kept is not base or kept.dtype != dtype:
            kept = self._model = ALONE.model(base, weights, dtype)
        elif dtype != torch.float32:
            torch._foreach_copy_([kept.weights[name] for name in weights], list(weights.values()))
        elif _places(kept.weights) != _places(weights):
            kept = self._model = ALONE.model(base, weights, dtype)
        return kept

    def summing(self, model: Model, borders: Sequence[int] | None, held: int) -> Model:
        weights = _places(model.weights)
        if model is not self._of or weights != self._weights:
            self._begin(model, weights)
        count = 1 if borders is None else len(borders) - 1
        while len(self._lanes) < held + count:
            shapes = {name: tuple(weight.shape) for name, weight in model.weights.items()}
            self._lanes.append(LaneSums(shapes, model.config.tie_word_embeddings, model.device))
        lanes = self._lanes[held : held + count]
        for lane in lanes:
            lane.clear()
        place = (held, None if borders is None else tuple(borders))
        found = self._summing.get(place)
        if found is None:
            if len(self._summing) >= KEPT:
                self._drop(next(iter(self._summing)))
            found = self._summing[place] = summing(model, lanes, borders)
            self._adding[found] = lanes
        return found

    def gradients(self, summing: Model, lane: int = 0) -> Gradients:
        return self._adding[summing][lane].gradients()

    def few(self, gradients: Gradients) -> list[Tensor]:
        """All gradients of an update, in as few tensors as have the same norm and are clipped alike."""
        whole = self._lanes[0].whole(gradients) if self._lanes else None
        return list(gradients.values()) if whole is None else [whole]

    def norms(self, gradients: Gradients, name: str) -> tuple[Tensor, Tensor]:
        """Of all gradients as one, and of the tensor of that name alone, as `Ranks.norms` has them."""
        return grad_norm(self.few(gradients)), grad_norm([gradients[name]])

    def update(
        self, gradients: Gradients, weights: dict[str, Tensor], optimizer: AdamW, model: Model
    ) -> PieceUpdate | None:
        """All of an update by these gradients, up to the roundings that passes of this model read. None where somebody
        looks into operators, or where the gradients are no sums of these."""
        whole = self._lanes[0].whole(gradients) if self._lanes else None
        if whole is None or not whole.is_cuda or looked_into() or stepped_around(optimizer):
            return None
        return self.update_of(whole, gradients, weights, optimizer, model)

    def update_of(
        self, whole: Tensor, gradients: Gradients, weights: dict[str, Tensor], optimizer: AdamW, model: Model
    ) -> PieceUpdate:
        kept, roundings = self._update, None if model.dtype == torch.float32 else model.weights
        if kept is None or not kept.is_of(whole, weights, roundings, optimizer):
            kept = self._update = PieceUpdate(whole, gradients, weights, roundings, optimizer)
        return kept

    def through(self, losses: Losses, summing: Model, examples: Sequence[Example], cut: Cut, weight: float) -> Tensor:
        if losses is minus_logprobs and not cut.padded and _can_capture(summing) and _inside(summing, examples):
            signature = Signature(summing, tuple(len(inputs) for inputs, _ in examples))
            found = self._graphs.get(signature) or self._captured(signature, examples)
            if found is not None:
                return found.replayed(examples, weight)
        self._make_room(summing.device)
        return ONE_BY_ONE.through(losses, summing, examples, cut, weight)

    def _captured(self, signature: Signature, examples: Sequence[Example]) -> _Pass | None:
        """The pass, if it came before and may be kept."""
        if signature not in self._seen:
            if len(self._seen) >= SEEN:
                del self._seen[next(iter(self._seen))]
            self._seen[signature] = None
            return None
        if not self._capturing or len(self._graphs) >= KEPT:
            return None
        device = signature.summing.device
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(device)
        try:
            made = _Pass(signature.summing, examples, self._pool)
        except torch.OutOfMemoryError:
            self._without_graphs()
            return None
        self._graphs[signature] = made
        self._held += torch.cuda.memory_reserved(device) - before
        event("captured pass", sequences=len(examples), graphs=len(self._graphs), bytes=self._held)
        return made

    def _make_room(self, device: torch.device) -> None:
        """A pass is made beside the graphs. Where memory is too short for both there are no graphs any more."""
        if not self._graphs:
            return
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) - self._held
        if free + unused < self._held:
            self._without_graphs()

    def _without_graphs(self) -> None:
        event("no more captured passes", graphs=len(self._graphs), bytes=self._held)
        self._capturing = False
        self._graphs.clear()
        self._empty()

    def _begin(self, model: Model, weights: list[tuple[int, torch.dtype]]) -> None:
        """Nothing of another model, or of weights in other places, is gone on with."""
        for place in list(self._summing):
            self._drop(place)
        self._lanes.clear()
        self._update = None
        self._of, self._weights = model, weights

    def _drop(self, place: tuple[int, tuple[int, ...] | None]) -> None:
        gone = self._summing.pop(place)
        del self._adding[gone]
        for signature in [each for each in self._seen if each.summing is gone]:
            del self._seen[signature]
        for signature in [each for each in self._graphs if each.summing is gone]:
            del self._graphs[signature]
            if not self._graphs:
                self._empty()

    def _empty(self) -> None:
        """Gives memory back that no graph needs any more; a pool without graphs cannot be shared again."""
        self._pool, self._held = None, 0
        torch.cuda.empty_cache()


class _Pass:
    """A pass over sequences of some lengths as a graph, and the tensors that it reads and writes."""

    def __init__(self, summing: Model, examples: Sequence[Example], pool: Any) -> None:
        device, tokens = summing.device, sum(len(inputs) for inputs, _ in examples)
        # Rows of 16 numbers: each begins where memory is aligned.
        self._given = torch.zeros(2, -(-tokens // 16) * 16, dtype=torch.int64, device=device)
        self._weight = torch.zeros(tokens, dtype=torch.float32, device=device)
        self._losses = torch.zeros(tokens, dtype=torch.float32, device=device)
        plain = Batch.of([torch.from_numpy(inputs) for inputs, _ in examples], device=device)
        ids, targets = self._given[:, :tokens]
        batch = Batch(ids=ids, positions=plain.positions, lengths=plain.lengths, spread=plain.spread_on(device))
        self._graph = torch.cuda.CUDAGraph()
        # Sums of weights' gradients, which nobody reads before the pass has ended.
        beside = SideBySide(device)
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        capture = torch.cuda.graph(self._graph, pool=pool, stream=stream)
        with torch.cuda.device(device), torch.enable_grad(), capture:
            # Autograd waits for the stream on which it first met a leaf, and a capture may not wait for another one.
            leaves = {name: each.detach().requires_grad_() for name, each in summing.weights.items()}
            own = replace(summing, weights=leaves, joined={})
            # Kept: the graph reads them.
            self._read = batch, own
            found = minus_logprobs(own, batch, targets)
            with beside.launched():
                torch.autograd.backward(found, self._weight)
            self._losses.copy_(found.detach())

    def replayed(self, examples: Sequence[Example], weight: float) -> Tensor:
        """The pass over these sequences; the losses, in memory of their own."""
        ends = self._losses.shape[0]
        # Memory that torch hands out again only after the copy.
        given = torch.empty(self._given.shape, dtype=torch.int64, pin_memory=True)
        for row, which in zip(given.numpy(), zip(*examples, strict=True), strict=True):
            np.concatenate(which, out=row[:ends])
            row[ends:] = 0
        self._given.copy_(given, non_blocking=True)
        self._weight.fill_(weight)
        self._graph.replay()
        return self._losses.clone()


def _places(weights: Mapping[str, Tensor]) -> list[tuple[int, torch.dtype]]:
    return [(each.data_ptr(), each.dtype) for each in weights.values()]


def _inside(model: Model, examples: Sequence[Example]) -> bool:
    """Whether every token is one of the vocabulary: a graph cannot look. Operators refuse the others in their words."""
    size = model.config.vocab_size

    def hold(numbers: NDArray[np.int64], inside: NDArray[np.bool_]) -> bool:
        return bool(inside.all()) and int(numbers.max()) < size

    return all(
        hold(inputs, inputs >= 0) and hold(targets, (targets >= 0) | (targets == IGNORED))
        for inputs, targets in examples
    )


def _can_capture(model: Model) -> bool:
    """Whether a pass is nothing but our kernels, and nobody wants to see single operators."""
    return model.operators == OURS and model.split is None and not looked_into()
