"""Whether a teacher helps, judged as `benchmarks/distillation.py` judges it: by losses on held-out text."""

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
held_out_loss, experiment = _BENCHMARK.held_out_loss, _BENCHMARK.experiment
