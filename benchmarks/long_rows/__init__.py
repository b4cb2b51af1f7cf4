"""Softmax of long rows by kernels that are not in use: wide loads, and a row shared by several programs.

The kernel in use reads two bytes a thread, since a thread owns a lane of the sum, and a row is one program's. Here a
block of steps is loaded as wide as can be, and the lanes' chains over its steps are a product with ones, which is a
chain of exact additions in their order. They have the order, and so the bits, of samebits.ops.softmax;
`benchmarks/gpu_long_rows.py` compares bits and times on a GPU."""
