"""AdamW's Triton kernel without a GPU: by Triton's interpreter the bits of the CPU, and the tables that it reads."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.ops.interpreting import interpreted

from samebits.ops.adamw import triton_tables
from samebits.ops.adamw.triton_tables import tables

found = partial(interpreted, "interpreted_adamw.py")
CPU = torch.device("cpu")
ROWS = ((16, 32, 48, 2**47, 0, 1000), (16, 32, 48, 64, 0, 24))


def test_a_launch_of_many_tensors_has_the_bits_of_the_cpu() -> None:
    differences = found()
    assert len(differences) == 40
    assert not any(differences.values()), differences


def test_an_element_that_is_left_out_is_noticed() -> None:
    """Planted."""
    answers = found("planted")
    written = [answer for case, answer in answers.items() if not case.startswith(("grad", "master"))]
    assert len(written) == 24 and all(written), answers


def test_tables_say_where_tensors_are_and_whose_a_program_is() -> None:
    *columns, firsts, owners = tables(ROWS, 128, CPU)
    assert [each.tolist() for each in columns] == [list(each) for each in zip(*ROWS, strict=True)]
    assert firsts.tolist() == [0, 8] and owners.tolist() == [0] * 8 + [1] and owners.dtype == torch.int32


def test_tables_are_remembered_for_the_same_memory_on_the_same_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that lie elsewhere, another stream, a capture: each has a table of its own."""
    stream, capturing, made = [7], [False], []
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: stream[0], raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(triton_tables, "_made", lambda rows, *_: made.append(rows) or (torch.zeros(1),))
    there = torch.device("cuda", 0)
    triton_tables._remembered.cache_clear()
    first = tables(ROWS, 128, there)
    assert tables(list(ROWS), 128, there) is first and len(made) == 1
    moved = (ROWS[0], (16, 32, 48, 80, 0, 24))
    assert tables(moved, 128, there) is not first and tables(ROWS, 128, torch.device("cuda", 1)) is not first
    stream[0] = 8
    assert tables(ROWS, 128, there) is not first
    capturing[0], stream[0] = True, 7
    assert tables(ROWS, 128, there) is not first and tables(ROWS, 128, there) is not tables(ROWS, 128, there)
    capturing[0] = False
    assert tables(ROWS, 128, there) is first
    triton_tables._remembered.cache_clear()
