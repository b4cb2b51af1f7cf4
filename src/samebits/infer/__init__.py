"""The engine: many requests share a forward pass, and none of them can tell. Knows token ids and no text."""

from samebits.infer.engine import Engine
from samebits.infer.request import Completion, Event, Request, Sampling

__all__ = ["Completion", "Engine", "Event", "Request", "Sampling"]
