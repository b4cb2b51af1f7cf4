"""Kernels of a step that decodes one token of every request, which are not in use: they begin before the kernel before
them has ended, and there are fewer of them.

Their order, and so their bits, are those of the operators; `benchmarks/gpu_decode_step.py` compares bits and times on a
GPU. What may be touched before the wait for the kernel before is said once, in waiting.py, and kernel by kernel beside
each wait; `tests/ops/test_decode_step_kernels.py` holds every access to it."""
