"""What the Triton kernels of two or more operators share: the device check, the one way to launch, and its counters.

Knows no operator. Importing this package does not import Triton; `launch` does nothing with it but call kernels."""
