"""Layers hold: imports go down only, numerics is light, and every operator's folder is complete."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.util import resolve_name
from pathlib import Path

import pytest

from samebits.contracts.loading import load_contract

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = PROJECT / "src" / "samebits"
LAYERS = (
    "cli > parity|bench > train|infer|post > model > nn > parallel|sim|trace > checker > invariant > ops"
    " > contracts > records > numerics > native"
)
DEPTH = {layer: number for number, step in enumerate(LAYERS.split(" > ")) for layer in step.split("|")}


def layers_used(source: str, package: str) -> set[str]:
    """Relative, function-local and type-only imports count as well."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("samebits.")}


def climbs(source: str, layer: str) -> set[str]:
    return {other for other in layers_used(source, f"samebits.{layer}") - {layer} if DEPTH[other] <= DEPTH[layer]}


@pytest.mark.parametrize("file", sorted(PACKAGE.glob("*/**/*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_go_down(file: Path) -> None:
    """layer(importer) is above layer(imported), for every file."""
    assert not climbs(file.read_text(), file.relative_to(PACKAGE).parts[0])


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("numerics", "from samebits.ops.matmul import matmul"),
        ("ops", "def late():\n    import samebits.checker"),
        ("train", "from samebits.infer import engine"),
        ("records", "from ..contracts import language"),
    ],
)
def test_a_climbing_import_is_noticed(layer: str, source: str) -> None:
    """Planted fault: one import upwards or sideways."""
    assert climbs(source, layer)


def test_every_folder_is_a_layer() -> None:
    folders = {folder.name for folder in PACKAGE.iterdir() if folder.is_dir() and folder.name != "__pycache__"}
    assert folders <= set(DEPTH)


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {
        name.split(".")[0] if not name.startswith("samebits.") else ".".join(name.split(".")[:2])
        for name in run.stdout.split()
    }


HEAVY = {"triton", "torch", "samebits.ops", "samebits.checker", "samebits.train", "samebits.model"}


def test_numerics_is_light() -> None:
    """`import samebits.numerics` loads neither Triton nor torch nor any layer above it."""
    statement = (
        "import samebits.numerics, samebits.numerics.reveal, samebits.numerics.elementary, samebits.numerics.adder"
    )
    assert not loaded_by(statement) & HEAVY


def test_a_heavy_import_is_noticed() -> None:
    """Planted fault: something that loads torch."""
    assert "torch" in loaded_by("import samebits.ops")


def test_a_component_is_complete() -> None:
    """Formula, kernels, promise, inputs and faults stand side by side in every component.

    A component without kernels of its own runs those of a component that its contract depends on."""
    wanted = {"__init__.py", "reference.py", "contract.yaml", "check.py", "faults.py"}
    kernels = {"cpu_kernel.cpp", "triton_kernel.py"}
    beside = PACKAGE / "ops" / "contracts"
    folders = [folder for home in (beside.parent, beside) for folder in home.iterdir() if folder.is_dir()]
    components = [folder for folder in folders if not folder.name.startswith("_") and folder != beside]
    assert {"matmul", "host_launch"} <= {folder.name for folder in components}
    for component in components:
        files = {file.name for file in component.iterdir()}
        borrowed = not files & kernels and load_contract(component / "contract.yaml").depends_on
        assert wanted <= files and (kernels <= files or borrowed), component.name


def test_every_module_says_what_it_is() -> None:
    for file in PACKAGE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(file.read_text())), f"{file.relative_to(PACKAGE)} has no opening sentence"


def test_no_folder_for_leftovers() -> None:
    """There is no `utils`: a thing without a home shows that a name is missing."""
    banned = re.compile(r"(utils?|common|misc|helpers?)(\.py)?$")
    assert not [path for path in PACKAGE.rglob("*") if banned.fullmatch(path.name)]


def dots_without_precision(source: str) -> list[int]:
    """Lines of `tl.dot` that leave the precision of their operands to Triton, whose default for float32 is tf32."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    dots = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "dot"]
    return [
        call.lineno
        for call in dots
        if isinstance(call.func, ast.Attribute)
        and getattr(call.func.value, "id", "") == "tl"
        and not any(word.arg == "input_precision" for word in call.keywords)
    ]


def test_no_product_is_left_to_tf32() -> None:
    kernels = [file for file in PACKAGE.rglob("*.py") if "tl.dot(" in file.read_text()]
    assert kernels
    for file in kernels:
        assert not dots_without_precision(file.read_text()), file.name


def test_a_product_without_precision_is_noticed() -> None:
    """Planted fault."""
    assert dots_without_precision("import triton.language as tl\nx = tl.dot(a, b, c)") == [2]
