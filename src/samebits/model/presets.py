"""Shapes by name, from one that trains in seconds on two cores to the 350M of the stability work."""

from __future__ import annotations

from typing import Final

from samebits.model.config import Config

PRESETS: Final[dict[str, Config]] = {
    "tiny": Config(
        vocabulary=2048, hidden=128, layers=4, heads=4, key_heads=2, head_size=32, intermediate=352, max_positions=1024
    ),
    "small": Config(
        vocabulary=8192, hidden=320, layers=8, heads=10, key_heads=5, head_size=32, intermediate=864, max_positions=2048
    ),
    "50m": Config(
        vocabulary=32768, hidden=512, layers=12, heads=8, key_heads=4, head_size=64, intermediate=1376,
        max_positions=2048,
    ),
    "135m": Config(
        vocabulary=49152, hidden=576, layers=30, heads=9, key_heads=3, head_size=64, intermediate=1536,
        max_positions=8192, theta=100000.0,
    ),
    "350m": Config(
        vocabulary=32768, hidden=1024, layers=24, heads=16, key_heads=4, head_size=64, intermediate=4096,
        max_positions=2048,
    ),
}  # fmt: skip
