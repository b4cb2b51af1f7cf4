"""What the toy must be: a predicate that its contract names."""

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference


def commutes(call: Call, tolerance: Tolerance) -> str:
    """The two tensors may change places: halving is exact but for subnormal numbers."""
    swapped = call.again(a=call.arguments["b"], b=call.arguments["a"])
    return difference(call.output, swapped, tolerance, words="a and b in each other's place")
