"""A training step as actions on the clock: passes, sums over tensor ranks, gradients over copies, the update.

Native: sums over tensor ranks by all-reduce, gradients by reduce-scatter beside the backward pass, weights by
all-gather beside the next forward pass. With the promise `tensor` a sum travels from rank to rank in tiles and comes
back; with `data` lanes end before anything is sent, every rank sends each owner its part, and a tree adds. `parallel`
does just this; a test holds the bytes here against its own count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from samebits.sim import collective_cost as cost
from samebits.sim.decoder_cost import FLOAT32, Kernel, Pass, optimizer_kernel, product, sum_kernel
from samebits.sim.gpus import Cluster
from samebits.sim.layouts import Layout, Training
from samebits.sim.step_clock import Clock
from samebits.sim.timing import FloatArray

# Rows of a tile that travels; `parallel` has the same number.
TILE_ROWS: Final = 128
# The vocabulary's words are taken in blocks, of which each has two statistics.
WORD_BLOCK: Final = 256
COPIES, PLACES = 0, 1


@dataclass(slots=True)
class Step:
    """One update of one layout, being timed."""

    training: Training
    layout: Layout
    cluster: Cluster
    promises: frozenset[str]
    sharding: str = "optimizer"
    recompute: bool = False
    gradient_bytes: int = FLOAT32
    copies: int = 1
    """How many copies have clocks of their own; where all are alike, one stands for all."""
    clock: Clock = field(init=False)
    micro: Pass = field(init=False)
    """One micro-batch on one rank."""
    sent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Bytes that the first rank's collectives carry, by what they are for."""

    def __post_init__(self) -> None:
        self.clock = Clock.of(self.copies, self.layout.tensor)
        (_, each), t = self.training.passes(self.layout), self.training
        self.micro = Pass(
            decoder=t.decoder, rows=each * t.length, length=t.length, share=self.layout.tensor, dtype=t.dtype
        )

    # Sizes

    @property
    def layer_share(self) -> float:
        """Numbers of a layer that a rank holds."""
        return self.training.decoder.layer_weights / self.layout.tensor

    @property
    def held(self) -> float:
        return self.training.decoder.weights / self.layout.tensor

    def seconds(self, *kernels: Kernel) -> float:
        return sum(kernel.seconds(self.cluster.device, self.training.dtype) for kernel in kernels)

    # A whole step

    def run(self) -> Clock:
        """Forward and backward passes of all micro-batches, gradients, update, weights."""
        count, _ = self.training.passes(self.layout)
        native = "data" not in self.promises
        self.one_pass(gather=native, reduce=native and count == 1)
        if count > 2:
            self._repeat(count - 2)
        if count > 1:
            self.one_pass(reduce=native)
        self.clock.wait()
        if not native:
            self._ordered_gradients()
        self.clock.work("optimizer", self.seconds(optimizer_kernel(self.held / self.layout.data, self.micro.element)))
        if not native:
            self._ordered_weights()
        return self.clock

    def _repeat(self, times: int) -> None:
        """Micro-batches in the middle are alike: one is timed, and stands for the others."""
        clock, sent = self.clock, dict(self.sent)
        begin, waited, network = clock.compute.copy(), clock.waited, clock.network.copy()
        clock.recording = False
        self.one_pass()
        clock.recording = True
        took = clock.compute - begin
        per_pass = clock.waited - waited
        clock.compute, clock.waited, clock.network = begin, waited, network
        clock.work(f"{times} micro-batches alike", times * took)
        clock.waited += times * per_pass
        for what, nbytes in self.sent.items():
            self.sent[what] = sent.get(what, 0.0) + times * (nbytes - sent.get(what, 0.0))

    def one_pass(self, *, gather: bool = False, reduce: bool = False) -> None:
        """A micro-batch. `gather`: weights arrive meanwhile; `reduce`: gradients leave meanwhile."""
        layers, full = self.training.decoder.num_hidden_layers, self.sharding == "full"
        coming: list[FloatArray] = []
        if (gather or full) and self.layout.data > 1:
            coming = [self._weights_come("gather weights")]
        self._embedding()
        for layer in range(layers):
            self._awaited(coming, layer, layers)
            self.forward_layer(layer)
        self._head()
        coming = [self._weights_come("gather weights")] if full and self.layout.data > 1 else []
        for layer in reversed(range(layers)):
            self._awaited(coming, layers - 1 - layer, layers)
            self.backward_layer(layer)
            if (reduce or full) and self.layout.data > 1:
                self._gradients_leave()

    def _awaited(self, coming: list[FloatArray], number: int, layers: int) -> None:
        """Kernels wait for a layer's weights, while the next one's are on their way."""
        if coming:
            self.clock.wait(coming[number])
            if number + 1 < layers:
                coming.append(self._weights_come("gather weights"))

    # Layers

    def forward_layer(self, layer: int) -> None:
        m = self.micro
        self.clock.work(f"forward {layer}", self.seconds(m.reading_attention(), m.attention(), m.pointwise(0.5)))
        self._row_parallel(f"o {layer}", m.writing_attention())
        self.clock.work(f"forward {layer}", self.seconds(m.reading_mlp(), m.pointwise(0.5)))
        self._row_parallel(f"down {layer}", m.writing_mlp())

    def backward_layer(self, layer: int) -> None:
        m, name = self.micro, f"backward {layer}"
        if self.recompute:
            self.clock.work(
                name,
                self.seconds(
                    m.reading_attention(),
                    m.attention(),
                    m.writing_attention(),
                    m.reading_mlp(),
                    m.writing_mlp(),
                    m.pointwise(),
                ),
            )
        self.clock.work(name, self.seconds(m.writing_mlp(), m.pointwise()) + self._weight_gradient(m.writing_mlp()))
        self._column_parallel(f"up' {layer}", m.reading_mlp(), 2 if m.decoder.gated else 1)
        self.clock.work(
            name,
            self._weight_gradient(m.reading_mlp())
            + self.seconds(m.writing_attention(), m.attention(2.5), m.pointwise())
            + self._weight_gradient(m.writing_attention()),
        )
        self._column_parallel(f"qkv' {layer}", m.reading_attention(), 3)
        self.clock.work(name, self._weight_gradient(m.reading_attention()))

    def _weight_gradient(self, forward: Kernel) -> float:
        """The product over rows, into a float32 sum; with lanes, one product for each that shares the pass."""
        return self.seconds(forward) + (self._lanes_of_pass() - 1) * self.cluster.device.launch

    def _lanes_of_pass(self) -> int:
        return self.training.lanes_together(self.layout)[1] if "data" in self.promises else 1

    def _row_parallel(self, name: str, whole: Kernel) -> None:
        """A product whose sum runs over all ranks of a copy."""
        d = self.training.decoder
        self._sum_over_places(name, whole, d.hidden_size, "row-parallel output")

    def _column_parallel(self, name: str, whole: Kernel, sums: int) -> None:
        """The gradient of an input that several weights read: as many sums travel, one comes back."""
        self._sum_over_places(name, whole, sums * self.training.decoder.hidden_size, "column-parallel input gradient")

    def _sum_over_places(self, name: str, whole: Kernel, width: int, what: str) -> None:
        m, fabric, group = self.micro, self.cluster.fabric, self.layout.tensor_group(self.cluster.fabric.per_node)
        back = m.rows * m.decoder.hidden_size * m.element
        if group.size == 1:
            self.clock.work(name, self.seconds(whole))
        elif "tensor" not in self.promises:
            self.clock.work(name, self.seconds(whole))
            self.clock.together(f"all-reduce {name}", PLACES, cost.all_reduce(fabric, group, back))
            self.sent[what] += 2 * back
        else:
            tiles = -(-m.rows // TILE_ROWS)
            part = Kernel(name, whole.flops / tiles, self._tile_bytes(whole, tiles))
            there, returned = m.rows / tiles * width * FLOAT32, back / tiles
            self.clock.chain(
                f"chain {name}",
                tiles,
                self.seconds(part),
                cost.hop(fabric, group, there),
                cost.hop(fabric, group, returned),
            )
            self.sent[what] += m.rows * width * FLOAT32 + back

    def _tile_bytes(self, whole: Kernel, tiles: int) -> float:
        """A tile reads the whole weight, which stays in the cache from tile to tile only where it is small."""
        return whole.nbytes / tiles

    # Both ends of the model

    def _embedding(self) -> None:
        self._beside("embedding rows", self.micro.rows * self.training.decoder.hidden_size * self.micro.element)

    def _head(self) -> None:
        """Logits, loss and their backward pass."""
        m, d = self.micro, self.training.decoder
        self.clock.work("head", self.seconds(m.head(), m.head(2.0)))
        self._beside("vocabulary statistics", m.rows * (2 * d.vocab_size / WORD_BLOCK + self.layout.tensor) * FLOAT32)
        self._sum_over_places(
            "head'",
            product("head'", m.rows, d.vocab_size / self.layout.tensor, 0, m.element),
            d.hidden_size,
            "vocabulary hidden gradient",
        )

    def _beside(self, what: str, nbytes: float) -> None:
        """What ranks of a copy tell each other besides sums."""
        fabric, group = self.cluster.fabric, self.layout.tensor_group(self.cluster.fabric.per_node)
        if group.size > 1:
            call: Callable[..., float] = cost.exchange if "tensor" in self.promises else cost.half
            self.clock.together(what, PLACES, call(fabric, group, nbytes))
            self.sent[what] += nbytes

    # Copies

    def _weights_come(self, what: str) -> FloatArray:
        group, nbytes = self.layout.data_group(self.cluster.fabric.per_node), self.micro.element * self.layer_share
        self.sent["weights"] += nbytes
        return self.clock.behind(what, COPIES, cost.half(self.cluster.fabric, group, nbytes))

    def _gradients_leave(self) -> None:
        group, nbytes = self.layout.data_group(self.cluster.fabric.per_node), self.gradient_bytes * self.layer_share
        self.sent["gradients"] += nbytes
        self.clock.behind("reduce-scatter", COPIES, cost.half(self.cluster.fabric, group, nbytes))

    def _ordered_gradients(self) -> None:
        """Lanes are added by a tree within a copy, and each owner adds what all copies send it, in the tree's order."""
        own = max(1, self.training.lanes // self.layout.data)
        self.clock.work("tree of lanes", (own - 1) * self.seconds(sum_kernel(self.held)) if own > 1 else 0.0)
        if self.layout.size > 1:
            group = self.layout.world(self.cluster.fabric.per_node)
            self.clock.together(
                "gradients to owners", COPIES, cost.exchange(self.cluster.fabric, group, FLOAT32 * self.held)
            )
            self.sent["gradients"] += FLOAT32 * self.held
        if self.layout.data > 1:
            others = (self.layout.data - 1) * self.held / self.layout.data
            self.clock.work("tree of copies", self.seconds(sum_kernel(others)))

    def _ordered_weights(self) -> None:
        if self.layout.size > 1:
            group, nbytes = self.layout.world(self.cluster.fabric.per_node), self.micro.element * self.held
            self.clock.together("weights to ranks", COPIES, cost.exchange(self.cluster.fabric, group, nbytes))
            self.sent["weights"] += nbytes
