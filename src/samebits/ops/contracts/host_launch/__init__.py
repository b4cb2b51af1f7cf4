"""The host's path of a call on a GPU, in C++: from Python's arguments to the driver's launches in one step.

Decides no bit: what is launched is what Python's own function was seen to launch for the same sizes, layouts, dtypes
and numbers (recording.py, kept by arguments.hpp). Where anybody listens, Python's function is called. Imports nothing:
it is loaded with the operators, on every machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
"""Where the C++ is."""
