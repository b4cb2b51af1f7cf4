"""Groups of codes as bytes: GGUF's blocks, and the tensors of compressed-tensors.

Knows no arithmetic: a bit that goes in comes out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from samebits.post.grouped import Grouped


def gguf_bytes(grouped: Grouped) -> bytes:
    """The blocks of a matrix, row by row: the scale, the minimum, the codes; four-bit codes in two halves."""
    name = grouped.format.name
    fields = [_stored(grouped.scale)]
    if grouped.minimum is not None:
        fields.append(_stored(grouped.minimum))
    codes = grouped.codes.numpy()
    if name == "q8_0":
        fields.append(codes.view(np.uint8))
    else:
        raised = (codes - grouped.format.least).astype(np.uint8)
        half = grouped.format.group // 2
        fields.append(raised[..., :half] | (raised[..., half:] << np.uint8(4)))
    return np.concatenate(fields, axis=-1).tobytes()


def packed_tensors(grouped: Grouped) -> dict[str, Tensor]:
    """compressed-tensors' pack-quantized: eight codes, each raised by 8, in an int32 from its lowest bits on."""
    rows = len(grouped.codes)
    raised = (grouped.codes.numpy().reshape(rows, -1, 8) - grouped.format.least).astype(np.uint32)
    shifts = np.arange(8, dtype=np.uint32) * np.uint32(4)
    words = np.bitwise_or.reduce(raised << shifts, axis=-1)
    columns = grouped.codes.shape[1] * grouped.format.group
    return {
        "weight_packed": torch.from_numpy(words.view(np.int32)),
        "weight_scale": grouped.scale.contiguous(),
        "weight_shape": torch.tensor([rows, columns]),
    }


def _stored(values: Tensor) -> np.ndarray:
    """float16 (N, groups) as bytes (N, groups, 2)."""
    return values.numpy()[..., None].view(np.uint8)
