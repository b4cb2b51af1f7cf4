"""What the passes of a decoder cost on one GPU: operators with their FLOPs and bytes, and a roofline over them.

Sizes are those of a decoder with attention, a feed-forward part and a head; `share` ranks hold a copy between them. A
kernel takes max(FLOPs / (peak x efficiency), bytes / (bandwidth x efficiency)) and its launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from samebits.sim.gpus import Device

FLOAT32: Final = 4
BYTES: Final = {"bfloat16": 2, "float32": 4}
# A backward pass of attention forms its scores again: five products where the forward pass has two.
ATTENTION_BACKWARD: Final = 2.5
# Reads and writes of a row of the residual stream by norms, residual sums and rotations, of a layer's forward pass.
STREAM_PASSES: Final = 16
# Of the feed-forward part's width: what its activation function reads and writes.
ACTIVATION_PASSES: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """The sizes of a decoder on which its cost depends."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    tie_word_embeddings: bool = True
    gated: bool = True
    """Whether the feed-forward part has three matrices (SwiGLU), or two."""

    @property
    def query(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key(self) -> int:
        return self.num_key_value_heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        matrices = 3 if self.gated else 2
        return self.hidden_size * (2 * self.query + 2 * self.key + matrices * self.intermediate_size + 2)

    @property
    def head_weights(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def weights(self) -> int:
        return (
            self.num_hidden_layers * self.layer_weights
            + self.hidden_size
            + self.head_weights * (1 if self.tie_word_embeddings else 2)
        )


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: how much it computes and moves, and which efficiency it has."""

    name: str
    flops: float
    nbytes: float
    attention: bool = False

    def seconds(self, device: Device, dtype: str) -> float:
        efficiency = device.attention_efficiency if self.attention else device.gemm_efficiency
        compute = self.flops / (device.flops[dtype] * efficiency)
        memory = self.nbytes / (device.memory_bytes_per_s * device.memory_efficiency)
        return max(compute, memory) + device.launch


def product(name: str, rows: float, inputs: float, outputs: float, element: int) -> Kernel:
    """rows x inputs by inputs x outputs."""
    moved = element * (rows * inputs + inputs * outputs + rows * outputs)
    return Kernel(name, 2 * rows * inputs * outputs, moved)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """A micro-batch on one rank of a copy."""

    decoder: Decoder
    rows: int
    """Tokens of the micro-batch."""
    length: int
    """Of a sequence."""
    share: int
    dtype: str

    @property
    def element(self) -> int:
        return BYTES[self.dtype]

    def reading_attention(self) -> Kernel:
        """Queries, keys and values."""
        d = self.decoder
        return product("qkv", self.rows, d.hidden_size, (d.query + 2 * d.key) / self.share, self.element)

    def writing_attention(self) -> Kernel:
        return product("o", self.rows, self.decoder.query / self.share, self.decoder.hidden_size, self.element)

    def reading_mlp(self) -> Kernel:
        d = self.decoder
        return product(
            "up", self.rows, d.hidden_size, (2 if d.gated else 1) * d.intermediate_size / self.share, self.element
        )

    def writing_mlp(self) -> Kernel:
        return product(
            "down", self.rows, self.decoder.intermediate_size / self.share, self.decoder.hidden_size, self.element
        )

    def attention(self, times: float = 1.0) -> Kernel:
        """Causal: half of the scores."""
        d = self.decoder
        flops = times * 2 * self.rows * self.length * d.query / self.share
        return Kernel("attention", flops, times * self.element * self.rows * 2 * (d.query + d.key) / self.share, True)

    def pointwise(self, times: float = 1.0) -> Kernel:
        """Norms, residual sums, rotations and the activation function; the stream itself is on every rank."""
        d = self.decoder
        width = STREAM_PASSES * d.hidden_size + ACTIVATION_PASSES * d.intermediate_size / self.share
        return Kernel("pointwise", 0.0, times * self.element * self.rows * width)

    def head(self, times: float = 1.0) -> Kernel:
        """Logits and their loss."""
        d = self.decoder
        made = product("head", self.rows, d.hidden_size, d.vocab_size / self.share, self.element)
        return Kernel(
            "head", times * made.flops, times * (made.nbytes + FLOAT32 * self.rows * d.vocab_size / self.share)
        )


def optimizer_kernel(weights: float, element: int) -> Kernel:
    """AdamW on float32 weights and two moments: each read and written, the gradient read, a rounding written."""
    return Kernel("optimizer", 0.0, weights * (6 * FLOAT32 + FLOAT32 + element))


def sum_kernel(numbers: float) -> Kernel:
    """One float32 buffer added into another."""
    return Kernel("sum", 0.0, 3 * FLOAT32 * numbers)
