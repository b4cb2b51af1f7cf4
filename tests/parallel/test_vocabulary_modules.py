"""Megatron's embedding and cross-entropy over real ranks == one device, bit for bit."""

from __future__ import annotations

import pytest
import torch
from tests.parallel.comparing import differing, drawn, own, same, wanted
from tests.parallel.ranks import on_ranks

from samebits import ops
from samebits.parallel.linear import rows_of
from samebits.parallel.vocabulary import vocabulary_cuts
from samebits.parallel.vocabulary_modules import VocabParallelEmbedding, vocab_parallel_cross_entropy
from samebits.parallel.world import World

WORDS, WIDTH, ROWS = 1000, 16, (2, 9)


def differences(world: World) -> list[str]:
    """Table, head and loss; the logits' gradient through the products that it feeds on one device."""
    group, found = world.group, []
    for cuts in (vocabulary_cuts(WORDS, group.size), [0, *[768] * (group.size - 1), WORDS]):
        if group.size == 1:
            cuts = [0, WORDS]
        hidden, weight = (
            wanted(drawn((*ROWS, WIDTH), 1, torch.float32)),
            wanted(drawn((WORDS, WIDTH), 2, torch.float32)),
        )
        targets = torch.randint(0, WORDS, ROWS, generator=torch.Generator().manual_seed(3))
        table = VocabParallelEmbedding.from_whole(weight.detach(), group, cuts=cuts)
        pairs = {"rows": (ops.embedding(targets, weight), table(targets))}
        logits = ops.lm_head(hidden.detach(), weight.detach())
        own_logits = own(logits.requires_grad_(), cuts, group, -1)
        loss = ops.linear_cross_entropy(hidden, weight, targets, reduction="none")
        own_loss = vocab_parallel_cross_entropy(own_logits, targets, group=group)
        g = drawn(ROWS, 4, torch.float32)
        loss.backward(g)
        own_loss.backward(g)
        assert own_logits.grad is not None and weight.grad is not None
        product = ops.matmul(rows_of(own_logits.grad).T, rows_of(hidden.detach()))
        pairs |= {"loss": (loss, own_loss), "dweight": (own(weight.grad, cuts, group), product)}
        found += [f"{cuts} {each}" for each in differing(pairs)]
        found += [
            f"{cuts} {dtype} {each}"
            for dtype in (torch.bfloat16, torch.float16)
            for each in against_one_rank(world, logits.detach().to(dtype), targets, cuts)
        ]
    return found


def against_one_rank(world: World, logits: torch.Tensor, targets: torch.Tensor, cuts: list[int]) -> list[str]:
    """Stored logits, some of them -inf, one block wholly; against this function on a rank alone."""
    logits[..., 5], logits[..., 256:512] = -torch.inf, -torch.inf
    alone, pieces = wanted(logits), own(wanted(logits), cuts, world.group, -1)
    g = drawn(ROWS, 5, torch.float32)
    loss = vocab_parallel_cross_entropy(alone, targets, group=World().group)
    own_loss = vocab_parallel_cross_entropy(pieces, targets, group=world.group, cuts=cuts)
    loss.backward(g)
    own_loss.backward(g)
    assert alone.grad is not None
    return differing({"loss": (loss, own_loss), "dlogits": (own(alone.grad, cuts, world.group, -1), pieces.grad)})


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_embedding_and_loss_are_those_of_one_device(size: int) -> None:
    assert on_ranks(size, differences) == [[]] * size


def test_an_order_that_is_not_ours_is_seen() -> None:
    """torch's own sum over the words gives other bits: equality above is not for free."""
    logits, targets = drawn((50, WORDS), 6, torch.float32), torch.arange(50)
    ours = vocab_parallel_cross_entropy(logits, targets, group=World().group)
    assert not same(ours, torch.nn.functional.cross_entropy(logits, targets, reduction="none"))


def test_what_is_not_kept_is_refused() -> None:
    group, logits, targets = World().group, torch.zeros(2, 300), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"^vocab_parallel_cross_entropy: label_smoothing is 0.1; allowed: 0.0$"):
        vocab_parallel_cross_entropy(logits, targets, 0.1, group=group)
    with pytest.raises(ValueError, match=r"logits are float64 on cpu; allowed: float32, bfloat16, float16 on cpu"):
        vocab_parallel_cross_entropy(logits.double(), targets, group=group)
    with pytest.raises(ValueError, match=r"target has shape \(3,\) int64, logits \(2, 300\); allowed: int64 or int32"):
        vocab_parallel_cross_entropy(logits, torch.zeros(3, dtype=torch.int64), group=group)
    with pytest.raises(ValueError, match=r"token 300 in row 1 is outside the vocabulary of 300"):
        vocab_parallel_cross_entropy(logits, torch.tensor([0, 300]), group=group)
