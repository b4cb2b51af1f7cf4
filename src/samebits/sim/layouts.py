"""What a training step is made of, and how ranks may share it: the batch, the layout, the promises, the memory.

Tensor x data: `tensor` ranks hold a copy of the weights between them, and there are `data` copies. Knows no time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from samebits.sim.collective_cost import Group
from samebits.sim.decoder_cost import BYTES, FLOAT32, Decoder
from samebits.sim.gpus import Cluster

# What keeping the bits of one device costs here: a sum over tensor ranks that travels, one over copies by lanes.
PROMISES: Final = ("data", "tensor")
# Numbers of a weight that whoever updates it keeps: itself and two moments.
KEPT: Final = 3
# Sharing of weights: none but the optimizer's (as the trainer does), or all of it (as FSDP does).
SHARDINGS: Final = ("optimizer", "full")
MATRIX_STEP: Final = 16


@dataclass(frozen=True, slots=True)
class Layout:
    """How many ranks hold a copy, and how many copies there are."""

    tensor: int
    data: int

    @classmethod
    def parse(cls, text: str) -> Layout:
        """`dp8xtp4`, in either order; what is left out is 1."""
        found = re.fullmatch(r"(?:(dp|tp)(\d+))(?:x(dp|tp)(\d+))?", text)
        parts = {} if found is None else {found[1]: int(found[2])} | ({found[3]: int(found[4])} if found[3] else {})
        if found is None or min(parts.values()) < 1 or (found[3] and len(parts) != 2):
            raise ValueError(f"layout is {text!r}; allowed: dpNxtpM, dpN or tpM, like dp8xtp4")
        return cls(parts.get("tp", 1), parts.get("dp", 1))

    @property
    def size(self) -> int:
        return self.tensor * self.data

    def __str__(self) -> str:
        return f"dp{self.data}xtp{self.tensor}"

    def tensor_group(self, per_node: int) -> Group:
        return Group(self.tensor, min(self.tensor, per_node))

    def data_group(self, per_node: int) -> Group:
        return Group(self.data, min(self.data, max(1, per_node // self.tensor)))

    def world(self, per_node: int) -> Group:
        return Group(self.size, min(self.size, per_node))


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """One update: a decoder and its global batch."""

    decoder: Decoder
    sequences: int
    length: int
    micro_batch: int
    """Sequences that a rank takes in one pass."""
    lanes: int = 1
    dtype: str = "bfloat16"

    @property
    def tokens(self) -> int:
        return self.sequences * self.length

    @property
    def flops(self) -> float:
        """Of all products of an update, forward and backward, causal attention counted half."""
        d = self.decoder
        dense = d.num_hidden_layers * (d.layer_weights - 2 * d.hidden_size) + d.head_weights
        return 6.0 * self.tokens * dense + 6.0 * self.tokens * d.num_hidden_layers * self.length * d.query

    def passes(self, layout: Layout) -> tuple[int, int]:
        """(micro-batches of a copy, sequences of each)."""
        own = self.sequences // layout.data
        each = min(self.micro_batch, own)
        return -(-own // each), each

    def lanes_together(self, layout: Layout) -> tuple[int, int]:
        """(lanes of a copy, how many of them share a pass: a whole subtree, as in the trainer); each has gradients of
        its own meanwhile."""
        own, each = max(1, self.lanes // layout.data), max(1, self.sequences // self.lanes)
        fitting = max(1, self.passes(layout)[1] // each)
        return own, min(own, 1 << (fitting.bit_length() - 1))


def refusals(training: Training, layout: Layout, cluster: Cluster, promises: frozenset[str]) -> list[str]:
    """Why a layout cannot be, one line each; none where it can."""
    d, per_node, found = training.decoder, cluster.fabric.per_node, []
    if training.sequences % layout.data:
        found.append(f"{layout.data} copies for {training.sequences} sequences; allowed: a divisor of them")
    if d.num_attention_heads % layout.tensor or d.intermediate_size % layout.tensor:
        found.append(
            f"tensor {layout.tensor} for {d.num_attention_heads} heads and {d.intermediate_size} inner units;"
            " allowed: a divisor"
        )
    if per_node % layout.tensor:
        found.append(
            f"tensor {layout.tensor} for nodes of {per_node}; allowed: a divisor, so that a copy is within one"
        )
    if layout.size > per_node and layout.size % per_node:
        found.append(f"{layout.size} GPUs in nodes of {per_node}; allowed: whole nodes")
    if "data" in promises and training.lanes % layout.data:
        found.append(f"{layout.data} copies for {training.lanes} lanes; allowed: a divisor of the number of lanes")
    if (
        "tensor" in promises
        and layout.tensor > 1
        and (d.head_dim * d.num_attention_heads // layout.tensor) % MATRIX_STEP
    ):
        found.append(f"heads of {d.head_dim} over {layout.tensor} ranks; allowed: multiples of {MATRIX_STEP}")
    if not found and (needed := memory(training, layout, promises)) > cluster.device.memory:
        found.append(f"{needed / 1e9:,.0f} GB a GPU; a {cluster.device.name} has {cluster.device.memory / 1e9:,.0f}")
    return found


def memory(
    training: Training,
    layout: Layout,
    promises: frozenset[str],
    *,
    sharding: str = "optimizer",
    recompute: bool = False,
) -> float:
    """Bytes of a rank: weights, gradients, what it updates, and what one micro-batch keeps."""
    d, element = training.decoder, BYTES[training.dtype]
    held = d.weights / layout.tensor / (layout.data if sharding == "full" else 1)
    sets = 1.0
    if "data" in promises:
        # One for each lane of a pass, and for each level of the tree over passes.
        own, together = training.lanes_together(layout)
        sets = together + float((own // together).bit_length() - 1)
    _, each = training.passes(layout)
    rows = each * training.length
    kept = 10 * d.hidden_size + (4 * d.query + 4 * d.key + 3 * d.intermediate_size) / layout.tensor
    layers = 1 + d.num_hidden_layers * 2 * d.hidden_size / kept if recompute else d.num_hidden_layers
    logits = rows * d.vocab_size / layout.tensor * (element + FLOAT32) / 8
    return (
        element * held
        + FLOAT32 * held * sets
        + KEPT * FLOAT32 * d.weights / layout.size
        + element * rows * kept * layers
        + logits
    )


def layouts_of(gpus: int, cluster: Cluster) -> Iterator[Layout]:
    """Tensor sizes from one up to a node, in powers of two."""
    tensor = 1
    while tensor <= min(gpus, cluster.fabric.per_node):
        if gpus % tensor == 0:
            yield Layout(tensor, gpus // tensor)
        tensor *= 2
