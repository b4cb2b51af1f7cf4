"""The proofs of kind `dag`, by name: `<component>_rows` shows that every row of a component's results is one
expression.

For contracts to name. Each takes a process of its own and some ten seconds; what it is good for is in its bound."""

from __future__ import annotations

from functools import partial

from samebits.checker.tracing import rows_proof

softmax_rows = partial(rows_proof, "softmax")
attention_rows = partial(rows_proof, "attention")
logprob_rows = partial(rows_proof, "logprob")
cross_entropy_rows = partial(rows_proof, "cross_entropy")
distill_loss_rows = partial(rows_proof, "distill_loss")
rmsnorm_rows = partial(rows_proof, "rmsnorm")
layernorm_rows = partial(rows_proof, "layernorm")
matmul_rows = partial(rows_proof, "matmul")
swiglu_rows = partial(rows_proof, "swiglu")
gelu_rows = partial(rows_proof, "gelu")
rope_rows = partial(rows_proof, "rope")
adamw_rows = partial(rows_proof, "adamw")
grad_norm_rows = partial(rows_proof, "grad_norm")
embedding_rows = partial(rows_proof, "embedding")
grouped_matmul_rows = partial(rows_proof, "grouped_matmul")
