"""The portable goldens, every group by every instruction set that can run here."""

from __future__ import annotations

import pytest

from samebits import native
from samebits.parity import portable

RECORDED = portable.read()


@pytest.mark.parametrize("group", portable.GROUPS)
@pytest.mark.parametrize("instruction_set", native.instruction_sets())
def test_every_instruction_set_gives_the_record(group: str, instruction_set: str) -> None:
    """digests(group) == goldens/portable.json."""
    found = portable.compare(group, RECORDED[group], portable.digests_of(group, instruction_set=instruction_set))
    assert found.equal and found.results > 10, f"{group} on {instruction_set}: {found.differing[:5]}"
