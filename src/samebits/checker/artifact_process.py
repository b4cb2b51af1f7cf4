"""The process that compiles: an operator's own launch code runs, and each launch ends in a compiled kernel instead of a
run.

Imports Triton and stands in for its driver, so no GPU is needed. Which artifact a launch asks for is decided by Triton
itself, from the arguments it is given. Prints what decides bits as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from samebits.checker.artifact_text import essence
from samebits.checker.tracing.comparing import without_gpu
from samebits.checker.tracing.operators import traced_kernels
from samebits.contracts.traced import Case
from samebits.native.launch_numbers import launching
from samebits.ops._triton import launch as launching_module

Found = dict[str, dict[str, Any]]


class NoMemory:
    """Stands where a trace has its memory: compiling asks for no names."""

    def add(self, *_: Any, **__: Any) -> None:
        return


class Forgetful(dict[Any, Any]):
    """Where launches look for what is compiled already: nothing is, so each of them comes to Triton."""

    def get(self, *_: Any) -> None:
        return None


def stand_in() -> None:
    """A driver that knows its target and nothing else."""
    triton.runtime.driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda _: 0,
        )
    )


def open_classes(kernel: Any) -> list[str]:
    """Arguments whose value or alignment would choose another artifact, so that a batch could."""
    return [
        each.name
        for each in kernel.params
        if not (each.is_constexpr or each.do_not_specialize or each.do_not_specialize_on_alignment)
    ]


def collect(found: Found, variants: tuple[str, ...]) -> None:
    """From now on a launch compiles, and its artifact is read. `variants` are constants that name another function."""
    original = JITFunction.run

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made = original(self, *arguments, grid=grid, warmup=True, **options)
        named = dict(zip(self.arg_names, arguments, strict=False))
        tensors = [each.base if isinstance(each, TensorDescriptor) else each for each in arguments]
        dtypes = " ".join(str(each.dtype).removeprefix("torch.") for each in tensors if isinstance(each, torch.Tensor))
        constants = " ".join(f"{name}={value}" for name, value in options.items() if name != "enable_fp_fusion")
        free = [name for name in open_classes(self) if not isinstance(named[name], (TensorDescriptor, type(None)))]
        if free:
            raise RuntimeError(
                f"{self.__name__}: an artifact for each class of {', '.join(free)}; allowed: one for all"
            )
        kept = essence(made.asm["ttgir"], made.asm["ptx"], fusion=bool(made.metadata.enable_fp_fusion))
        asked = " ".join([dtypes, *(f"{name}={options[name]}" for name in variants if name in options)])
        found.setdefault(f"{self.__name__} {asked}", {})[f"{dtypes} {constants}"] = asdict(kept)
        return made

    JITFunction.run = run
    launching_module._compiled = Forgetful()


def compile_case(case: Case) -> None:
    """Every launch in the last format, and what the operator itself chooses in the others."""
    for format in case.formats:
        launches = case.launches(format)
        for launch in launches if format == case.formats[-1] else launches[:1]:
            with without_gpu(), launching(**({} if launch is None else {"launch": launch})):
                for batch in case.batches:
                    case.call(NoMemory(), getattr(torch, format), batch)


def main(package: str) -> dict[str, Any]:
    """An operator's artifacts, and the approximate instructions that it declares by kernel."""
    found: Found = {}
    stand_in()
    kernels = traced_kernels(package)
    collect(found, kernels.variants)
    for case in kernels.cases:
        compile_case(case)
    return {"artifacts": found, "declared": {name: sorted(each) for name, each in kernels.approximations.items()}}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])), flush=True)
