"""The README's picture of orders is drawn from its record, and what it draws are the orders measured."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.repository.documents import PROJECT

from samebits.numerics.order import balanced, chain, digest, lanes, text

RECORD = json.loads((PROJECT / "benchmarks" / "results" / "cpu_orders.json").read_text())


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    import orders_picture

    return orders_picture


def test_the_picture_is_that_of_the_record(drawing: Any) -> None:
    assert drawing.PICTURE.read_text() == drawing.picture(RECORD)


def test_orders_are_read_as_they_were_measured(drawing: Any) -> None:
    for function in RECORD["functions"]:
        assert sorted(rows for order in function["orders"] for rows in order["rows"]) == list(range(1, 65))
        for order in function["orders"]:
            assert digest(drawing.read_order(order["order"])) == order["digest"]
    for order in (chain(7), lanes(16, 4), balanced(8)):
        assert drawing.read_order(text(order)) == order


def test_another_order_is_another_picture(drawing: Any) -> None:
    """Planted fault: rows that torch adds as it adds one row."""
    torch_, ours = RECORD["functions"]
    first, second, *others = torch_["orders"]
    moved = [first | {"rows": [*first["rows"], *second["rows"]]}, *others]
    changed = RECORD | {"functions": [torch_ | {"orders": moved}, ours]}
    assert drawing.picture(changed) != drawing.picture(RECORD)
