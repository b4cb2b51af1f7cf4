"""What must be true of the records that tell a kernel its sizes: made by name they arrive, by position they do not."""

from __future__ import annotations

from dataclasses import fields

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.train.contracts.kernel_sizes import RECORDS


def sizes_go_by_keyword(call: Call, tolerance: Tolerance) -> str:
    """Records that are made by keyword give the operator's own result. Any number of values by position, in whichever
    record, is a TypeError before the kernel is called."""
    wrong = difference(call.output, call.reference(*call.arguments.values()), tolerance, words="against the operator")
    if wrong:
        return wrong
    for name, record in RECORDS.items():
        for count in range(1, len(fields(record)) + 1):
            try:
                call.again({"by_position": {name: count}})
            except TypeError as error:
                if f"{name}.__init__" not in str(error):
                    return f"{name}: {count} by position are refused for another reason: {error}"
            else:
                return f"{name}: {count} by position are taken"
    return ""
