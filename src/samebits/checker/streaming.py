"""Level 3: obligations of one subject tried side by side on one stream of drawn cases, each until it has its calls.

The inputs and the first call of a case are made once for all of them. What an obligation meets depends on the stream
and on itself alone, so it gives the same result beside others and by itself. Makes no receipt."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from samebits.checker.cases import Case
from samebits.checker.drawing import Stream, drawn, minimised
from samebits.checker.driving import equal_bits
from samebits.checker.falsification import Seen, Tried, judged, judgement_of, what_was_tried
from samebits.checker.fresh import digest
from samebits.checker.obligations import Judgement
from samebits.checker.outcome import Outcome, Tally
from samebits.checker.recent import Recent
from samebits.checker.revealing import REPLAYS
from samebits.contracts.language import Contract
from samebits.contracts.registry import Component
from samebits.numerics.replay import REPLAY_RECIPES
from samebits.records.report import UnjudgedError, Verdict

# Cases that one obligation takes before the next has its turn; so many first calls are remembered, and some more.
TURN = 64
# Of the ways in which a promise varies a call a drawn case meets so many; ten thousand cases meet each way often.
WAYS = 1
# No more are drawn where a domain hardly ever tries its promise.
MOST_CASES = 160_000


def alike(contract: Contract, identifier: str, backend: str) -> tuple[str, ...]:
    """What obligations must have in common to be tried on one stream. An order is measured on no drawn numbers."""
    obligation = contract.obligations[identifier]
    domain = contract.domains[obligation.domain]
    own = identifier if obligation.name in ("order", "device") else ""
    return backend, obligation.subject, str(domain.draw), str(domain.formats), own


def tried_together(
    component: Component, identifiers: Sequence[str], backend: str, seed: int
) -> Iterator[tuple[str, Tried | str]]:
    """Each obligation with what was found, or with why it could not be judged; all of them are `alike`."""
    recent = Recent()
    trials = [_Trial(component, identifier, backend, seed, recent) for identifier in identifiers]
    turn, waiting = 0, trials
    while waiting:
        turn += TURN
        for trial in waiting:
            trial.go_on(turn)
        waiting = [trial for trial in waiting if trial.found is None]
    for identifier, trial in zip(identifiers, trials, strict=True):
        try:
            yield identifier, trial.ended(recent.seconds / len(trials))
        except UnjudgedError as error:
            yield identifier, str(error)


class _Trial:
    """One obligation on its way through the stream."""

    def __init__(self, component: Component, identifier: str, backend: str, seed: int, recent: Recent) -> None:
        contract, plain = component.contract(), judgement_of(component, identifier, backend)
        if plain.check is None:
            raise ValueError(f"{plain.subject}: no check for {plain.promise!r} exists yet")
        self.domain = contract.domains[contract.obligations[identifier].domain]
        self.judgement = replace(plain, setting=replace(plain.setting, ways=WAYS))
        self.recent, self.seen = recent, _SeenTogether(recent, backend)
        self.found: Outcome | None = None
        self.seconds = 0.0
        self.cases = list[Case]()
        source = self._to_measure(seed) if self.measures else self._drawn(seed)
        setting = replace(self.judgement.setting, recent=recent, watch=self.seen.watch)
        self.tally = Tally(plain.check(setting, source))

    @property
    def measures(self) -> bool:
        """An order is measured by probes that no recipe makes: each vector on which it is replayed is a call."""
        return self.judgement.promise == "order"

    def go_on(self, turn: int) -> None:
        """Tries cases up to `turn`; an order is measured in one go."""
        started, before = time.perf_counter(), self.recent.seconds
        self.found = self.tally.count(lambda: len(self.cases) >= turn and not self.measures)
        self.seconds += time.perf_counter() - started - (self.recent.seconds - before)

    def _drawn(self, seed: int) -> Iterator[Case]:
        """Cases of the stream, until so many as are asked for have tried the promise: one row alone has no chunks."""
        stream = Stream(self.domain, self._formats(), seed)
        while self.tally.judged < self.domain.draw.calls and len(self.cases) < MOST_CASES:
            self.cases.append(stream[len(self.cases)])
            yield self.cases[-1]

    def _to_measure(self, seed: int) -> Iterator[Case]:
        """The written cases, and of drawn ones those of another size each, as many as replay so many vectors; a sum
        has two terms at least."""
        found: dict[tuple[str, tuple[int, ...]], Case] = {}
        for case in drawn(self.domain, self._formats(), self.domain.draw.calls, seed):
            if case.shape[1] > 1:
                found.setdefault((case.format, case.shape[:2]), case)
        enough = -(-self.domain.draw.calls // (min(REPLAYS.values()) * len(REPLAY_RECIPES)))
        self.cases = [*self.judgement.cases, *list(found.values())[:enough]]
        yield from self.cases

    def _formats(self) -> list[str]:
        formats = [each for each in self.domain.formats if each in self.judgement.setting.orders]
        return ["float32"] if self.judgement.promise == "device" else formats

    def ended(self, shared_seconds: float) -> Tried:
        """What was found, a failure made small, and the planted faults on the same cases."""
        started, found = time.perf_counter(), self.found
        assert found is not None  # it went on to its end
        if found.verdict is Verdict.DOES_NOT_HOLD and found.case is not None and not self.measures:
            small = minimised(found.case, self.domain, lambda case: not _holds(self.judgement, case))
            found = replace(found, detail=judged(self.judgement, [small]).detail or found.detail)
        calls = found.inputs if self.measures else found.judged
        result = what_was_tried(self.judgement, self.cases, found, self.seen, calls)
        seconds = self.seconds + shared_seconds + time.perf_counter() - started
        return replace(result, seconds=round(seconds, 3))


def _holds(judgement: Judgement, case: Case) -> bool:
    return judged(judgement, [case]).verdict is not Verdict.DOES_NOT_HOLD


class _SeenTogether(Seen):
    """Digests of first outputs; where another obligation saw the same bits on a case, its digest is taken."""

    def __init__(self, recent: Recent, backend: str) -> None:
        super().__init__()
        self._recent, self._backend = recent, backend

    def watch(self, case: Case, output: Tensor) -> None:
        if case in self.outputs:
            return
        kept, known = self._recent.of(
            "digest", self._backend, case, lambda: (output.clone(), digest({"output": output}))
        )
        self.outputs[case] = known if equal_bits(kept, output) else digest({"output": output})
