"""What is traced and compiled of the toy by Triton: the output, and both gradients, over elements."""

from samebits.ops.halved_product import triton_kernel

from samebits.contracts.traced import TracedKernels, checked, element_cases
from samebits.ops.elementwise import element_launches

KERNELS = TracedKernels(cases=element_cases("halved_product", triton_kernel, checked(element_launches), "a", "b"))
