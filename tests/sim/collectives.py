"""Every collective of torch.distributed once, on numbers that tell orders of addition apart; digests of what came out.

The same on gloo processes and on the virtual cluster. Full-width float64: values widened from float32 add exactly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

SIZES = (1, 7, 1000, 70_001)
# Beyond 2 W MiB, where all-reduce and reduce are cut differently.
LARGE = 2_500_003
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def bits(tensors: Iterable[Tensor]) -> str:
    state = hashlib.sha256()
    for tensor in tensors:
        state.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return state.hexdigest()[:16]


def numbers(rank: int, size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(size, dtype=torch.float64, generator=source).to(dtype)


def reductions(rank: int) -> dict[str, str]:
    found = {}
    for dtype in DTYPES:
        for size in SIZES:
            x = numbers(rank, size, dtype)
            dist.all_reduce(x)
            found[f"all_reduce {dtype} {size}"] = bits([x])
    for name in ("AVG", "PRODUCT", "MIN", "MAX"):
        x = numbers(rank, 999, torch.float32, 2)
        if name in ("MIN", "MAX"):
            x[rank::7], x[::11] = torch.nan, -0.0 if rank % 2 else 0.0
        dist.all_reduce(x, op=getattr(dist.ReduceOp, name))
        found[f"all_reduce {name}"] = bits([x])
    whole = torch.arange(50, dtype=torch.int64) * (rank + 3)
    dist.all_reduce(whole, op=dist.ReduceOp.BXOR)
    strided = numbers(rank, 600, torch.float32, 3).view(20, 30).t()
    dist.all_reduce(strided)
    pairs = torch.view_as_complex(numbers(rank, 200, torch.float32, 4).view(100, 2))
    dist.all_reduce(pairs)
    several = [numbers(rank, size, torch.float32, 5) for size in (3, 50, 701)]
    dist.all_reduce_coalesced(several)
    return found | {
        "bxor": bits([whole]),
        "strided": bits([strided]),
        "complex": bits([torch.view_as_real(pairs)]),
        "coalesced": bits(several),
    }


def large(rank: int) -> dict[str, str]:
    """Two buffers that all-reduce and reduce cut at different places."""
    x, y = (numbers(rank, LARGE, torch.float32, seed) for seed in (6, 7))
    dist.all_reduce(x)
    dist.reduce(y, dst=1)
    return {"all_reduce large": bits([x]), "reduce large": bits([y]) if rank == 1 else ""}


def movements(rank: int, ranks: int) -> dict[str, str]:
    out = numbers(rank, 17, torch.float32, 8)
    dist.broadcast(out, src=1)
    reduced = numbers(rank, 501, torch.float64, 9)
    dist.reduce(reduced, dst=ranks - 1)
    into = torch.empty(ranks * 6)
    dist.all_gather_into_tensor(into, numbers(rank, 6, torch.float32, 10))
    lists = [torch.empty(4) for _ in range(ranks)]
    dist.all_gather(lists, numbers(rank, 4, torch.float32, 11))
    piece = torch.empty(33)
    dist.reduce_scatter_tensor(piece, numbers(rank, 33 * ranks, torch.float32, 12))
    listed = torch.empty(33)
    dist.reduce_scatter(listed, list(numbers(rank, 33 * ranks, torch.float32, 12).chunk(ranks)))
    swapped = torch.empty(2 * ranks)
    dist.all_to_all_single(swapped, numbers(rank, 2 * ranks, torch.float32, 13))
    gathered = [torch.empty(3) for _ in range(ranks)] if rank == 0 else None
    dist.gather(numbers(rank, 3, torch.float32, 14), gathered, dst=0)
    scattered = torch.empty(3)
    dist.scatter(scattered, list(numbers(7, 3 * ranks, torch.float32, 15).chunk(ranks)) if rank == 0 else None, src=0)
    objects: list[object] = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    dist.barrier()
    rooted = bits([reduced]) if rank == ranks - 1 else ""
    return {
        "broadcast": bits([out]),
        "reduce": rooted,
        "gather into": bits([into]),
        "gather list": bits(lists),
        "scatter tensor": bits([piece]),
        "scatter list": bits([listed]),
        "all to all": bits([swapped]),
        "gather": bits(gathered or []),
        "scatter": bits([scattered]),
        "objects": str(objects),
        "messages": messages(rank, ranks),
    }


def across(x: Tensor) -> Tensor:
    """The same numbers, laid out with the first dimension innermost."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def layouts(rank: int, ranks: int) -> dict[str, str]:
    """Dense tensors that are not contiguous, which gloo takes as they lie in memory, or copies first."""
    wide = numbers(rank, 60 * ranks, torch.float32, 18).view(2 * ranks, 5, 6)
    broad = across(wide) if rank == 1 else wide.clone()
    dist.broadcast(broad, src=1)
    pieces = [across(each) for each in numbers(7, 60 * ranks, torch.float32, 19).view(ranks, 10, 6)]
    scattered = torch.empty(10, 6)
    dist.scatter(scattered, pieces if rank == 0 else None, src=0)
    single, listed, into = (torch.empty(2, 5, 6) for _ in range(3))
    dist.reduce_scatter_tensor(single, across(wide))
    dist.reduce_scatter(listed, [across(each) for each in wide.chunk(ranks)])
    into = across(into)
    dist.reduce_scatter(into, list(wide.chunk(ranks)))
    # One element of a wider buffer: contiguous by torch's rule, with a stride that is not 1.
    one = numbers(rank, 2, torch.float64, 20)[::2]
    dist.all_reduce(one)
    refused = []
    for call in (dist.send, dist.recv):
        try:
            call(across(wide), (rank + 1) % ranks)
        except RuntimeError:
            refused.append(call.__name__)
    whole = torch.arange(4) + rank
    try:
        dist.all_reduce(whole, op=dist.ReduceOp.AVG)
    except RuntimeError as error:
        refused.append(str(error))
    return {
        "broadcast across": bits([broad]),
        "scatter across": bits([scattered]),
        "scatter tensor across": bits([single]),
        "scatter list across": bits([listed]),
        "scatter list into across": bits([into]),
        "one element": one.item().hex(),
        "refused": str(refused),
    }


def messages(rank: int, ranks: int) -> str:
    """Round a ring, two tags at once."""
    there, back = torch.empty(5), torch.empty(5)
    works = [
        dist.isend(numbers(rank, 5, torch.float32, 16), (rank + 1) % ranks, tag=1),
        dist.isend(numbers(rank, 5, torch.float32, 17), (rank + 1) % ranks, tag=2),
        dist.irecv(back, (rank - 1) % ranks, tag=2),
        dist.irecv(there, (rank - 1) % ranks, tag=1),
    ]
    for work in works:
        assert work is not None
        work.wait()
    return bits([there, back])


def all_collectives(with_large: bool = False) -> dict[str, str]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = reductions(rank) | movements(rank, ranks) | layouts(rank, ranks)
    return found | large(rank) if with_large else found
