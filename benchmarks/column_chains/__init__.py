"""Sums over rows, column by column, by a kernel that is not in use: who adds does nothing else.

A column is one chain of additions, each of which waits for the one before it: 4 cycles a row on a Hopper GPU, if
nothing else is in the way. In the kernel in use a warp computes terms, waits for its neighbours, and then adds. Here
one warp copies, others compute terms, and one adds what they left in shared memory, a column a thread. It has the
order, and so the bits, of samebits.ops._triton.columns; `benchmarks/gpu_column_chains.py` compares bits and times on a
GPU."""
