"""Operators that keep their bits, one room each. A room is a folder; its existence is its registration."""

from samebits.ops.matmul import linear, matmul, matmul_accumulate_
from samebits.ops.rmsnorm import rmsnorm

__all__ = ["linear", "matmul", "matmul_accumulate_", "rmsnorm"]
