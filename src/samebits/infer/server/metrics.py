"""What a Prometheus server scrapes: requests, tokens, what runs and waits, pages, the time to a first token.

Has a registry of its own, so that two servers in one process do not meet. Engine figures are read when scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

# Seconds, from a step of a tiny model to a queue that is far too long.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counts kept by the server, and figures that the engine keeps."""

    def __init__(self, engine: Callable[[], Mapping[str, int]]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "samebits_requests", "HTTP requests by path and status.", ("path", "status"), registry=self.registry
        )
        self.prompt_tokens = Counter("samebits_prompt_tokens", "Tokens of prompts.", registry=self.registry)
        self.completion_tokens = Counter("samebits_completion_tokens", "Tokens of answers.", registry=self.registry)
        self.first_token = Histogram(
            "samebits_time_to_first_token_seconds",
            "From a request's last byte to its first token.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.registry.register(_EngineFigures(engine))

    def count(self, path: str, status: int) -> None:
        self.requests.labels(path, str(status)).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _EngineFigures:
    """Each figure of the engine: those of the moment are gauges, the others only grow."""

    NOW = ("running", "waiting", "pages_free", "pages_used", "pages_kept")

    def __init__(self, engine: Callable[[], Mapping[str, int]]) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        for name, value in self._engine().items():
            family = GaugeMetricFamily if name in self.NOW else CounterMetricFamily
            yield family(f"samebits_engine_{name}", f"The engine's {name.replace('_', ' ')}.", value=value)
