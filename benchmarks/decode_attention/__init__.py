"""Kernels of attention for few queries over many keys that are not in use: all blocks' scores and weights at once.

Only the sums over values are a chain, and it is cut by columns. They have the order, and so the bits, of the kernels in
samebits.ops.attention, but are faster for one sequence of some 500 to 8,000 keys alone (NOTES.md, "One query, all
blocks at once"); `benchmarks/gpu_decode_attention.py` compares bits and times on a GPU."""
