"""Kernels of attention for Hopper that are not in use yet: the backward pass, and a forward pass that fills nothing.

They have the order, and so the bits, of the kernels in samebits.ops.attention. They stand here, not there, because
evidence for those kernels rests on every file beside them, and renewing it takes a GPU; `benchmarks/gpu_attention.py`
compares bits and times on one. Without a GPU the tests run them on a small machine in Python and compile them."""
