"""A new component to be filled in: spec, reference, contract, inputs, faults and properties, none of which passes as it
is.

Every text of the contract that a person must write is left empty, with a remark on the same line, so that the loader
refuses the file there until all are written; every function raises. Knows no operator."""

from __future__ import annotations

import keyword
import re
import shutil
import tempfile
from pathlib import Path
from string import Template
from typing import Final

_CONTRACT = """\
contract: $name
prefix: $prefix
version: 0.1.0
requires_level: 3
refs:
  - work:     # the published work that defines it
    locator:  # section, equation or page
depends_on: []
numerics:
  accumulator: float32
  fused:  # which operations round once: as written, none, every product of a chain
  flush_to_zero: false
  tf32: false
  atomics: false
equations:
  $prefix-EQ1:
    text:  # what is computed, with its indices
    reference: "$package.$name.reference:${name}64"
subjects:
  $prefix-S1:
    object: "$package.$name:$name"
    equation: $prefix-EQ1
    spec: $name
    orders:
      cpu: {float32: }  # the order of its sums: chain-1, chain-16, lanes-256
domains:
  $prefix-D1:
    shapes: []   # one number an axis, rows first: 1, one short of a tile, one over, a prime
    recipes: [normal, wide, cancelling]
    formats: [float32]
    seeds: [1]
    draw:
      sizes: []  # one text an axis: "1..33" or "16, 32"
      recipes: [normal, wide, cancelling]
      calls: 10000
obligations:
  $prefix-OB1:
    subject: $prefix-S1
    predicate: {name: "$package.$name.properties:holds"}
    domain: $prefix-D1
    tolerance: {kind: }  # bitwise, ulp, abs, rel or derived, with what it needs
    tests: [FALSIFY-$prefix-001]
    mutants: [$prefix-MU1]
tests:
  FALSIFY-$prefix-001:
    obligation: $prefix-OB1
    prediction:   # what every output does
    if_fails:     # what is then probably wrong
    examples: []  # like 33x257 normal float32 seed 1
mutants:
  $prefix-MU1: {of: $prefix-S1, object: "$package.$name.faults:broken"}
"""

_SPEC = '''\
"""The spec of `$name`."""

from __future__ import annotations

from torch import Tensor


def $name(x: Tensor, *, backend: str | None = None) -> Tensor:
    """What it computes, in one sentence."""
    raise NotImplementedError("$name: the kernel is not written")
'''

_REFERENCE = '''\
"""`$name` said plainly: the definition that every backend is held to. Shares no code with the kernels.

Order: which sums there are, and in what order each runs.
Rounding: after which steps, and to what."""

from __future__ import annotations

from torch import Tensor


def ${name}64(x: Tensor) -> Tensor:
    """The equation in float64."""
    raise NotImplementedError("$name: the reference is not written")
'''

_CHECK = '''\
"""How a checker drives `$name`: inputs, exact values and bounds, launch numbers."""

from __future__ import annotations

from samebits.contracts.spec import OperatorSpec

SPECS: dict[str, OperatorSpec] = {}
'''

_FAULTS = '''\
"""Planted faults of `$name`: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

from torch import Tensor


def broken(x: Tensor) -> Tensor:
    """Which promise it breaks, and how a person might come to write it."""
    raise NotImplementedError("$name: the planted fault is not written")
'''

_PROPERTIES = '''\
"""What `$name` must be, whatever it is built of: predicates that its contract names and the checker executes.

Each takes a call that happened and says in one line what is wrong, or nothing."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance


def holds(call: Call, tolerance: Tolerance) -> str:
    """What is true of every output."""
    raise NotImplementedError("$name: the property is not written")
'''

FILES: Final = {
    "__init__.py": _SPEC,
    "reference.py": _REFERENCE,
    "contract.yaml": _CONTRACT,
    "check.py": _CHECK,
    "faults.py": _FAULTS,
    "properties.py": _PROPERTIES,
}


def scaffold(name: str, prefix: str, folder: Path, package: str = "samebits.ops") -> Path:
    """Writes the component `folder`/`name` and returns its path: all of it, or nothing; never over anything."""
    if re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name) is None or keyword.iskeyword(name):
        raise ValueError(f"name is {name!r}; allowed: small letters, digits and _, no word of Python")
    if re.fullmatch(r"[A-Z][A-Z0-9]{0,15}", prefix) is None:
        raise ValueError(f"prefix is {prefix!r}; allowed: capitals and digits")
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in package.split(".")):
        raise ValueError(f"package is {package!r}; allowed: names with dots between them")
    component = folder / name
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; the component {name!r} goes into one that exists")
    if component.exists() or component.is_symlink():
        raise ValueError(f"{component} exists; a new component needs a name that is free")
    try:
        _write(component, {"name": name, "prefix": prefix, "package": package})
    except OSError as error:
        raise ValueError(f"{component} cannot be written: {error.strerror}") from error
    return component


def _write(component: Path, words: dict[str, str]) -> None:
    """In a folder beside it that nobody takes for a component, then renamed in one step."""
    waiting = Path(tempfile.mkdtemp(prefix=f".{component.name}.", dir=component.parent))
    try:
        for file, text in FILES.items():
            (waiting / file).write_text(Template(text).substitute(words), encoding="utf-8")
        waiting.chmod(0o755)
        waiting.rename(component)
    except BaseException:
        shutil.rmtree(waiting, ignore_errors=True)
        raise
