"""The library's functions beside pages that may not be touched: a buffer that is too short is seen at both its ends."""

from __future__ import annotations

import pytest

from samebits import native
from samebits.train.contracts.library_indices import PLANTED, ran
from samebits.train.contracts.library_indices.calls import functions
from samebits.train.contracts.library_indices.guarding import Calls, UnknownBufferError, guarding


@pytest.mark.parametrize("side", ["end", "start"])
def test_a_buffer_that_is_too_short_ends_the_process_where_it_is_touched(side: str) -> None:
    said = ran(side, ("others",), PLANTED)
    assert not said.ended and said.last.startswith(f"{PLANTED[0]} ") and said.last.endswith(f" {side}")


def test_functions_are_read_from_the_sources() -> None:
    assert {"matmul", "attention_backward", "philox", "convert"} <= set(functions())


def test_memory_of_which_nobody_knows_how_long_it_is_is_refused() -> None:
    with (
        guarding(Calls("end", lambda line: None)),
        pytest.raises(UnknownBufferError, match="square_root: nobody keeps"),
    ):
        native.call("square_root", "ppq", 4096, 8192, 1)
