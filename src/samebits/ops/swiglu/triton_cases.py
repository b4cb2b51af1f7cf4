"""What is traced and compiled of SwiGLU by Triton: the output, and both gradients, over elements."""

from samebits.contracts.traced import TracedKernels, checked, element_cases
from samebits.ops.elementwise import element_launches
from samebits.ops.swiglu import triton_kernel

KERNELS = TracedKernels(cases=element_cases("swiglu", triton_kernel, checked(element_launches), "gate", "up"))
