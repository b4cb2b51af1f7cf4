"""Whether a teacher helps, judged as `benchmarks/distillation.py` judges it: held-out losses and a paired t-test."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tests.train.small_run import ROOT


def benchmark() -> ModuleType:
    specification = importlib.util.spec_from_file_location("distillation", ROOT / "benchmarks" / "distillation.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


_BENCHMARK = benchmark()
held_out_loss, p_of_smaller, upper_tail = _BENCHMARK.held_out_loss, _BENCHMARK.p_of_smaller, _BENCHMARK.upper_tail
experiment = _BENCHMARK.experiment
