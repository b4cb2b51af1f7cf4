"""Products by CUDA C++, by kernels that are not in use: tiles of any height and width, so that they fill the GPU.

Triton's tiles are powers of two. Of 5,000 rows by 2,048 columns its tiles of 128 x 256 are 2.4 times as many as an H200
has multiprocessors, and so take three rounds; tiles of 256 x 160 take two. wgmma takes any multiple of 8 columns, and
which tile an output is in decides no bit. They have the order, and so the bits, of samebits.ops.matmul;
`benchmarks/gpu_cuda_products.py` compares bits and times on a GPU."""
