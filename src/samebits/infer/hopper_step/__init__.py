"""The decode step for Hopper: fewer kernels, and each begins before the kernel before it has ended.

Their order, and so their bits, are those of the operators. What a kernel may touch before it waits is said once, in
waiting.py, and what holds where the step begins and ends in step.py; choices.py is what may be tuned. All but that
needs Triton; chosen_step.py, a folder above, imports it where it can run."""
