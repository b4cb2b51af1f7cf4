"""The text of one answer as its tokens come: whole characters only, nothing of a stop string, nothing taken back.

Knows neither HTTP nor the shapes of answers."""

from __future__ import annotations

from collections.abc import Sequence

from samebits.infer.request import Event
from samebits.model.tokenizer import Stream, Tokenizer


class Writer:
    """Feeds on events. `finish` says why the answer is over, None while it is not."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], silent: frozenset[int]) -> None:
        self._stream = Stream(tokenizer)
        self._stops = stops
        self._silent = silent
        self._held = ""
        """Text that may turn out to be the beginning of a stop string."""
        self.written = 0
        """Characters let go of so far."""
        self.finish: str | None = None

    @property
    def offset(self) -> int:
        """Where the next token's text begins."""
        return self.written + len(self._held)

    def feed(self, event: Event) -> str:
        """The text that is certain now. A token that ends the answer has none."""
        ends = event.finished == "stop" and event.token in self._silent
        self._held += "" if ends else self._stream.feed(event.token)
        if event.finished is not None:
            self._held += self._stream.finish()
            self.finish = event.finished
        found = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            self.finish = "stop"
        keep = min(found) if found else len(self._held) if self.finish else self._certain()
        text, self._held = self._held[:keep], "" if self.finish else self._held[keep:]
        self.written += len(text)
        return text

    def _certain(self) -> int:
        """Where the longest tail begins that a stop string begins with."""
        length = len(self._held)
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for start in range(max(0, length - longest), length):
            if any(stop.startswith(self._held[start:]) for stop in self._stops):
                return start
        return length
