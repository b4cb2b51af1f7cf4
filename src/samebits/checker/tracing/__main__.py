"""The process that traces: `python -m samebits.checker.tracing NAME...`, an operator's package or FILE:KERNEL.

Prints the facts of a proof as JSON. A kernel of one's own is (x_ptr, y_ptr, M, H, BLOCK): rows of x to rows of y."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def self_test(tracer: Any) -> None:
    """A kernel of two lines whose expression is known: does the interpreter still do what is thought of it?"""
    import torch
    import triton.language as tl

    from samebits.checker.tracing.own import twice_plus_one

    tracer.begin(finite=False)
    x, y = torch.zeros(4), torch.zeros(4)
    tracer.memory.add("x", x)
    twice_plus_one[(2,)](x, y, BLOCK=2, enable_fp_fusion=False)
    cells, stored = tracer.memory.result(y)
    nodes = tracer.nodes
    one, two = (nodes.number("fp32", value) for value in (1.0, 2.0))
    expected = [nodes.make("fma", "fp32", (nodes.leaf("x", place, "fp32"), two, one)) for place in range(4)]
    if cells["id"].tolist() != expected or not stored.all() or not hasattr(tl, "tensor"):
        raise RuntimeError("tracing: the interpreter of this Triton does not do what is known of 3.6")


def main(names: list[str]) -> list[dict[str, Any]]:
    """The facts for each name, in the order asked for."""
    from samebits.checker.tracing.comparing import judge
    from samebits.checker.tracing.hooks import install
    from samebits.checker.tracing.interpreter import Tracer
    from samebits.checker.tracing.operators import traced_kernels
    from samebits.checker.tracing.own import own_case

    tracer = Tracer()
    install(tracer)
    self_test(tracer)
    return [
        judge(tracer, [own_case(*name.rsplit(":", 1))] if ":" in name else traced_kernels(name).cases) for name in names
    ]


if __name__ == "__main__":
    if os.environ.get("TRITON_INTERPRET") != "1":
        sys.exit("tracing: TRITON_INTERPRET is not 1; this process is started by samebits.checker.tracing")
    print(json.dumps(main(sys.argv[1:])), flush=True)
