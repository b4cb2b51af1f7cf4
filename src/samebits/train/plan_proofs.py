"""Integer facts of the training algebra, for all plans at once: nested floors, least epochs, warm-up, tokens, resuming.

Runs the real functions of `algebra` on unknowns; knows no learning rate."""

from __future__ import annotations

from typing import Any

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth
from samebits.train import algebra


def nested_floors() -> Claim:
    """algebra.py:steps_per_epoch: floor(n / (b g W)) is the floor of floors: micro-batches, updates, ranks."""

    def state(z: Symbols) -> Truth:
        b, g, W = z.wholes("b g W", least=1)
        steps, over_ranks, over_updates, over = z.wholes("steps over_ranks over_updates over", least=0)
        z.assume(over_ranks < W, over_updates < g, over < b)
        updates = steps * W + over_ranks
        micro_batches = updates * g + over_updates
        n = micro_batches * b + over
        rest = (over_ranks * g + over_updates) * b + over
        z.knows(n, b, micro_batches, over)
        z.knows(micro_batches, g, updates, over_updates)
        z.knows(updates, W, steps, over_ranks)
        z.knows(n, b * g * W, steps, rest)
        given: list[Any] = [n, b, g, W]
        nested = n // z.planted(b, b + 1) // g // W
        return z.all_of(algebra.steps_per_epoch(*given) == nested, algebra.dropped_sequences(*given) < b * g * W)

    return Claim(name="nested floors", state=state, fault="micro-batches of b + 1")


def dropped() -> Claim:
    """algebra.py:dropped_sequences: fewer than one update's sequences, and all others are used once an epoch."""

    def state(z: Symbols) -> Truth:
        cut: list[Any] = z.wholes("b g W", least=1)
        batch: Any = algebra.batch_sequences(*cut)
        whole, over = z.wholes("whole over", least=0)
        z.assume(over < batch)
        n: Any = batch * whole + over
        z.knows(n, batch, whole, over)
        lost: Any = algebra.dropped_sequences(n, *cut)
        used: Any = algebra.steps_per_epoch(n, *cut) * batch
        return z.all_of(lost >= 0, lost < z.planted(batch, batch - 1), used + lost == n)

    return Claim(name="dropped sequences", state=state, fault="one fewer allowed")


def least_epochs_are_least() -> Claim:
    """algebra.py:least_epochs: they reach max_steps, one fewer do not; epochs >= least_epochs is reach >= max_steps."""

    def state(z: Symbols) -> Truth:
        max_steps, per_epoch, epochs = z.wholes("max_steps per_epoch epochs", least=1)
        given: list[Any] = [max_steps, per_epoch]
        least: Any = z.planted(algebra.least_epochs(*given), max_steps // per_epoch)
        enough = algebra.reachable_steps(epochs, per_epoch) >= max_steps  # type: ignore[arg-type]
        return z.all_of(
            least * per_epoch >= max_steps, (least - 1) * per_epoch < max_steps, z.same(epochs >= least, enough)
        )

    return Claim(name="least epochs", state=state, fault="floor for ceiling")


def steps_and_warmup() -> Claim:
    """algebra.py:actual_steps: the smaller of max_steps and reach; a warm-up of at most a tenth ends in time."""

    def state(z: Symbols) -> Truth:
        max_steps, reach, warmup = z.wholes("max_steps reach warmup", least=1)
        steps = z.source(algebra.actual_steps)(max_steps, reach)
        z.assume(10 * warmup <= z.planted(steps, max_steps))
        one = z.any_of(steps == max_steps, steps == reach)
        return z.all_of(steps <= max_steps, steps <= reach, one, warmup < steps)

    return Claim(name="steps and warm-up", state=state, fault="the warm-up compared with max_steps")


def tokens() -> Claim:
    """algebra.py: tokens = steps * tokens_per_step; whole epochs see every token equally often."""

    def state(z: Symbols) -> Truth:
        b, g, W, length = z.wholes("b g W S", least=1)
        epochs, per_epoch = z.wholes("epochs per_epoch", least=1)
        given: list[Any] = [b, z.planted(g, g + 1), W, length]
        per_step: Any = algebra.tokens_per_step(*given)
        steps: Any = algebra.reachable_steps(epochs, per_epoch)  # type: ignore[arg-type]
        return z.all_of(per_step == b * g * W * length, steps * per_step == epochs * (per_epoch * per_step))

    return Claim(name="tokens", state=state, fault="another accumulation")


def resume_position() -> Claim:
    """algebra.py:position_after: after t steps, epoch * per_epoch * g + micro-batch = t g; a whole update is left of
    the epoch; the position before the last step lies within the run."""

    def state(z: Symbols) -> Truth:
        t, per_epoch, g, epochs = z.whole("t", least=0), *z.wholes("per_epoch g epochs", least=1)
        z.assume(t < per_epoch * epochs)
        given: list[Any] = [t, per_epoch, g]
        epoch: Any
        micro: Any
        epoch, micro = algebra.position_after(*given)
        micro = z.planted(micro, t * g)
        whole = micro + g <= per_epoch * g
        return z.all_of(epoch * (per_epoch * g) + micro == t * g, whole, epoch >= 0, epoch < epochs, micro >= 0)

    return Claim(name="position to resume at", state=state, fault="steps of earlier epochs counted again")


def plans() -> Proof:
    """algebra.py: CFG-EQ1 to CFG-EQ6 and CFG-EQ10."""
    claims = [nested_floors(), dropped(), least_epochs_are_least(), steps_and_warmup(), tokens(), resume_position()]
    return prove(claims, bound="all plans of numbers >= 1")
