"""AdamW of many tensors in one launch, which is not in use: the one in use is a launch a tensor.

Python takes longer over a launch than the device over a small tensor's step, and a model has hundreds. The operations
are those of samebits.ops.adamw, and so are the bits; `benchmarks/gpu_adamw_many.py` compares them and times both on a
GPU."""
