"""What an operator must do with a dtype: compute in it as declared, or refuse it in one line."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.model.contracts.operator_dtypes import (
    COLUMNS,
    CRASHED,
    OTHER_RESULT,
    REFUSED,
    TAKEN,
    UNCLEAR,
    every_dtype,
)
from samebits.model.contracts.operator_dtypes.public import functions


def declared_dtypes_compute(call: Call, tolerance: Tolerance) -> str:
    """Every declared dtype is taken, and the results have the declared one."""
    return _first_fault(call, (REFUSED, OTHER_RESULT))


def others_are_refused(call: Call, tolerance: Tolerance) -> str:
    """Every other dtype is refused in one line that names it and what is allowed; none is taken, and none crashes."""
    return _first_fault(call, (TAKEN, CRASHED, UNCLEAR))


def _first_fault(call: Call, columns: tuple[int, ...]) -> str:
    names, dtypes = list(functions(int(call.arguments["seed"]))), every_dtype()
    allowed = call.reference(*call.arguments.values())
    for name, row in zip(names, call.output.tolist(), strict=True):
        for column in columns:
            if row[column] != allowed:
                return f"{name} with {dtypes[row[column] - 1]}: {COLUMNS[column]}"
    return ""
