"""Pages and pictures that are made when the site is built, from records and from the library itself: none can be stale.

A hook of mkdocs. `benchmarks.md` is what benchmarks/report.py writes of benchmarks/results; `samebits.numerics.picture`
draws the orders; a page of `api/` has every public name of a package, each where it is defined: a function and its
folder may have one name."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from samebits.numerics.order import Fused, balanced, chain, lanes
from samebits.numerics.picture import svg

ROOT = Path(__file__).resolve().parents[1]
PICTURES = {
    "chain": ("A chain", chain(16)),
    "lanes": ("Lanes", lanes(16, 4)),
    "balanced": ("A balanced tree", balanced(16)),
    "fused": ("Fused additions", chain(32, 16, Fused())),
}
# Packages, and modules beside them whose own public functions and classes go on the same page.
API = {
    "samebits": (),
    "samebits.ops": (),
    "samebits.nn": (),
    "samebits.model": (),
    "samebits.infer": (),
    "samebits.trace": ("samebits.trace.debug", "samebits.trace.streams", "samebits.trace.adapters"),
}
BENCHMARKS = """# Benchmarks

Written from `benchmarks/results` when this site is built; each record names the script, the commit, the day and the
machine that made it. Ratios above 1: samebits is faster. First a row for each list of ratios, then every ratio.

"""


def on_files(files: Any, config: Any) -> Any:
    """Adds what is made to what is written."""
    files.append(File.generated(config, "benchmarks.md", content=BENCHMARKS + _costs()))
    for package, beside in API.items():
        name = package.rpartition(".")[2]
        files.append(File.generated(config, f"api/{name}.md", content=_reference(package, beside)))
    for record in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        files.append(File.generated(config, f"benchmarks/results/{record.name}", content=record.read_text()))
    for name, (title, order) in PICTURES.items():
        files.append(File.generated(config, f"pictures/{name}.svg", content=svg(order, title)))
    return files


def public(package: str) -> list[str]:
    """The public names of a package, by where each is defined."""
    module = importlib.import_module(package)
    names = module.__all__ if hasattr(module, "__all__") else [name for name in vars(module) if name[0] != "_"]
    found = [getattr(module, name) for name in names]
    own = [each for each in found if inspect.isclass(each) or inspect.isfunction(each)]
    if not hasattr(module, "__all__"):
        own = [each for each in own if each.__module__ == package]
    return [f"{each.__module__}.{each.__qualname__}" for each in own]


def _reference(package: str, beside: tuple[str, ...]) -> str:
    lines = [f"# {package}", "", inspect.getdoc(importlib.import_module(package)) or "", ""]
    for name in [each for module in (package, *beside) for each in public(module)]:
        lines += [f"::: {name}", ""]
    return "\n".join(lines)


def _costs() -> str:
    sys.path.append(str(ROOT / "benchmarks"))
    report = importlib.import_module("report")
    return f"{report.table()}\n\n{report.section(folder='benchmarks/results')}"
