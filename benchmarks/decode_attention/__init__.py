"""Kernels of attention for few queries over many keys that are not in use yet: all blocks' scores and weights at once.

Only the sums over values are a chain, and it is cut by columns. They have the order, and so the bits, of the kernels in
samebits.ops.attention, and stand here for the reason that hopper_attention gives; `benchmarks/gpu_decode_attention.py`
compares bits and times on a GPU."""
