"""Which functions of which component are traced, in which batches, and with which launches.

A table: how a component is called is in components.py, what is made of it in comparing.py. A component that is
missing here has no kernel of its own, or one whose way depends on its data (`sample` searches among its scores)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from samebits.checker.tracing import components, sequences
from samebits.checker.tracing.components import Case, checked_launches

BATCHES: Final = (1, 2, 5)
# Elements: one, an odd number, whole vectors, more than any block.
ELEMENTS: Final = (1, 7, 64, 2049)
WITHOUT_ROWS: Final = ("twice", "missing", "narrowed")


def per_row(results: int) -> Callable[[Any], int]:
    def rows(batch: int) -> int:
        return results * batch

    return rows


def once(batch: Any) -> int:
    return 1


def twice(batch: Any) -> int:
    return 2


def two_a_sequence(pack: Sequence[tuple[int, int]]) -> int:
    """A row of attention is a sequence; there are two results."""
    return 2 * len(pack)


def over_rows(component: str, words: str, call: Any, results: int, **options: Any) -> Case:
    return Case(
        words=words, call=call, batches=BATCHES, rows=per_row(results), launches=checked_launches(component), **options
    )


def over_elements(component: str, words: str, call: Any, results: int, **options: Any) -> Case:
    return Case(
        words=words, call=call, batches=ELEMENTS, rows=per_row(results), launches=checked_launches(component), **options
    )


def over_sequences(words: str, call: Any, packs: Sequence[Any] = sequences.FEW_QUERIES) -> Case:
    return Case(
        words=words, call=call, batches=packs, rows=two_a_sequence, launches=sequences.attention_launches, finite=True
    )


def over_experts(words: str, call: Any) -> Case:
    """With 21 rows some programs have nothing to do, with 5 the last one has. No result is rounded but at the end."""
    launches, faults = checked_launches("grouped_matmul"), ("twice", "missing", "neighbour")
    return Case(words=words, call=call, batches=(1, 2, 21, 5), rows=per_row(1), launches=launches, faults=faults)


LOGPROB: Final = (
    over_rows("logprob", "log-probabilities of 304 tokens, K 64", components.logprob, 2),
    over_rows("logprob", "gradients of 304 logits, K 64", components.logprob_gradient, 1),
)
COMPONENTS: Final[Mapping[str, Sequence[Case]]] = {
    "softmax": (
        over_rows("softmax", "softmax of 600", components.softmax_forward(False), 1),
        over_rows("softmax", "log_softmax of 600", components.softmax_forward(True), 1),
        over_rows("softmax", "the gradient of softmax", components.softmax_backward(False), 1),
        over_rows("softmax", "the gradient of log_softmax", components.softmax_backward(True), 1),
    ),
    "attention": (
        over_sequences(
            "causal attention, (queries,keys) of each sequence, D 16",
            sequences.attention(True, 0, 0.0),
            sequences.PACKS,
        ),
        over_sequences("with a window of 20", sequences.attention(True, 20, 0.0)),
        over_sequences("without a mask, softcap 30", sequences.attention(False, 0, 30.0)),
    ),
    "logprob": LOGPROB,
    # Its kernels are those of component logprob, and 0 - logprob hides the sign of a zero.
    "cross_entropy": LOGPROB,
    "distill_loss": (
        over_rows("distill_loss", "the loss over 304 tokens, both terms", components.distill_forward(0.5), 2),
        over_rows("distill_loss", "the divergence alone", components.distill_forward(1.0), 1),
        over_rows("distill_loss", "the cross-entropy alone", components.distill_forward(0.0), 1),
        over_rows("distill_loss", "the gradient", components.distill_backward(0.5), 1),
    ),
    "rmsnorm": (
        over_rows("rmsnorm", "rmsnorm of 600 with a residual", components.rmsnorm_forward, 3),
        over_rows("rmsnorm", "the gradient of its input", components.rmsnorm_backward, 1),
        Case(
            words="the gradient of the weight over 40 rows, cut at",
            call=components.rmsnorm_weight,
            batches=((), (16,), (7, 20)),
            rows=once,
            launches=checked_launches("rmsnorm"),
            faults=WITHOUT_ROWS,
        ),
    ),
    "layernorm": (
        over_rows("layernorm", "layernorm of 600", components.layernorm_forward, 3),
        over_rows("layernorm", "the gradient of its input", components.layernorm_backward, 1),
        Case(
            words="the gradients of weight and bias over 40 rows, cut at",
            call=components.layernorm_columns,
            batches=((), (16,), (7, 20)),
            rows=twice,
            launches=checked_launches("layernorm"),
            faults=WITHOUT_ROWS,
        ),
    ),
    "matmul": (
        Case(
            words="a b + bias, K 256, N 24",
            call=components.matmul,
            batches=BATCHES,
            rows=per_row(1),
            launches=components.matmul_launches,
        ),
    ),
    "grouped_matmul": (
        over_experts("rows by expert, K 72, N 24", components.grouped_matmul(72, mixed=False)),
        over_experts("rows of experts in turn, K 70, N 24", components.grouped_matmul(70, mixed=True)),
        Case(
            words="the gradients of two weights over 40 rows each, cut at",
            call=components.grouped_dweight,
            batches=((), (16,), (16, 32)),
            rows=once,
            launches=checked_launches("grouped_matmul"),
            faults=("twice", "missing"),
        ),
    ),
    "swiglu": (
        over_elements("swiglu", "swiglu", components.swiglu_forward, 1),
        over_elements("swiglu", "its gradients", components.swiglu_backward, 2),
    ),
    "gelu": (
        over_elements("gelu", "gelu and its gradient by the error function", components.gelu(False), 2),
        over_elements("gelu", "by tanh", components.gelu(True), 2),
    ),
    "rope": (
        over_rows("rope", "rope of 5 heads of 48, halves", components.rope(False, False), 1),
        over_rows("rope", "interleaved, back again", components.rope(True, True), 1),
    ),
    "adamw": (over_elements("adamw", "a step with master weights", components.adamw, 4),),
    "grad_norm": (
        Case(
            words="the sum of squares of tensors of sizes",
            call=components.grad_squares,
            batches=((300,),),
            rows=once,
            launches=checked_launches("grad_norm"),
            faults=WITHOUT_ROWS,
        ),
        Case(
            words="the sum of squares of tensors of sizes",
            call=components.grad_squares,
            batches=((65576, 9),),
            rows=once,
            launches=checked_launches("grad_norm"),
            faults=WITHOUT_ROWS,
        ),
        over_elements("grad_norm", "clipping that takes place", components.grad_clip, 1, branch=False),
    ),
    "embedding": (
        over_rows("embedding", "rows of a table of 40", components.embedding, 1, faults=("twice", "missing")),
    ),
}
