"""What is traced and compiled of the cross-entropy: the kernels of `logprob`, for 0 - logprob hides no bit but the
sign of a zero."""

from samebits.ops.logprob.triton_cases import KERNELS

__all__ = ["KERNELS"]
