"""The fresh process that `fresh.py` starts: reads a request as JSON, runs the function, prints digests as JSON."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any

from samebits.checker.cases import Case
from samebits.checker.driving import Setting, begin, everything
from samebits.checker.fresh import digest
from samebits.checker.targets import OPERATORS, find_spec, import_object, positional


def answer(request: dict[str, Any]) -> list[str]:
    """One digest a case, in the order asked for."""
    spec = replace(find_spec(request["spec"], OPERATORS)[0], differentiable=request["differentiable"])
    setting = Setting(function=positional(import_object(request["function"])), spec=spec, backend=request["backend"])
    found = []
    for each in request["cases"]:
        case = Case(tuple(each["shape"]), each["recipe"], each["format"], each["seed"])
        found.append(digest(begin(setting, case, everything(spec))[1]))
    return found


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))), flush=True)
    # The answer is given: what libraries do to their threads while being torn down is no part of it.
    os._exit(0)
