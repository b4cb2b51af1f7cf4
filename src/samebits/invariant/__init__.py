"""Invariant mode: `invariant_mode`, under which a model that nobody here wrote keeps its bits.

mode.py          sees every aten operation, forward and backward, and decides
whole.py         what must be caught before torch takes it apart: attention.py's scaled_dot_product_attention
routed.py        the closed table of operations that samebits computes; its functions stand in
                 products.py, sums.py, losses.py and pointwise.py
harmless.py      the closed table of operations that cannot change an order
refused.py       why anything else is refused, and what to do instead
place.py         where in a model an operation was asked for
transformers.py  attn_implementation="samebits" for transformers; loaded only where transformers is"""

from samebits.invariant.mode import InvariantMode, invariant_mode
from samebits.invariant.refused import InvariantError, InvariantWarning

__all__ = ["InvariantError", "InvariantMode", "InvariantWarning", "invariant_mode"]
