"""In which order a linear layer adds, by the number of rows in the batch: torch's and ours, measured, as a picture.

    python benchmarks/cpu_orders.py [--record]

`--record` writes the record and draws `docs/orders_by_rows.svg` from it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch
from orders_picture import PICTURE, picture
from provenance import cpu_results, on_arm, processor, provenance

from samebits import checker, ops
from samebits.numerics.order import digest, text
from samebits.numerics.picture import describe
from samebits.numerics.reveal import group_orders
from samebits.records.report import Verdict

RESULTS = cpu_results("cpu_orders.json")
TERMS, ROWS = 64, range(1, 65)
FUNCTIONS = {"torch.nn.functional.linear": torch.nn.functional.linear, "samebits.ops.linear": ops.linear}


def measured(name: str) -> dict[str, Any]:
    """Every order of a function, each replayed bit for bit on other numbers before it counts."""
    found = checker.reveal(FUNCTIONS[name], TERMS, tuple(ROWS), "linear")
    groups = group_orders({str(rows): revelation for rows, revelation in found.items()})
    orders = []
    for group in groups:
        if group.order is None or group.verdict != Verdict.HOLDS:
            sys.exit(f"{name}, rows {', '.join(group.labels)}: {group.verdict}; nothing is recorded")
        rows = [int(label) for label in group.labels]
        words = {"words": describe(group.order), "digest": digest(group.order), "order": text(group.order)}
        orders.append({"rows": rows, **words})
    return {"function": name, "orders": orders}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name} and {PICTURE.name}")
    options = parser.parse_args()
    functions = [measured(name) for name in FUNCTIONS]
    for each in functions:
        for order in each["orders"]:
            rows = order["rows"]
            print(f"{each['function']}: rows {rows[0]} to {rows[-1]}: {order['words']} [{order['digest'][:12]}]")
    if options.record:
        record = {
            **provenance(__file__, processor()),
            "torch": torch.__version__,
            "terms": TERMS,
            "dtype": "float32",
            "functions": functions,
        }
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")
        if not on_arm():  # The picture is that of x86.
            PICTURE.write_text(picture(record))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
