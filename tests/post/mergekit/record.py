"""Records what mergekit makes of the recipes: run by hand, never by a test.

    python -m tests.post.mergekit.record MERGEKIT [NAME ...]

MERGEKIT is the program `mergekit-yaml` of an environment of its own; the tensors here are those of mergekit 0.1.5, and
another version is refused. NAME is a recipe of `tests/post/small_models.py`; without one all are recorded, in bfloat16
and in float32. Models are written anew, a function of their seeds; tensors that come out otherwise show in git."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from tests.post.small_models import models, recipes

HERE = Path(__file__).parent
VERSION = "0.1.5"
FORMATS = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def main(program: str, *names: str) -> None:
    code = "from importlib.metadata import version; print(version('mergekit'))"
    asked = [str(Path(program).with_name("python")), "-c", code]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if found != VERSION:
        raise SystemExit(f"record: mergekit is {found}; allowed: {VERSION}")
    for kind, dtype in FORMATS.items():
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            for name, recipe in recipes(models(folder, dtype)).items():
                if names and name not in names:
                    continue
                document, out = folder / f"{name}.yaml", folder / f"out_{name}"
                document.write_text(json.dumps({**recipe, "dtype": kind}))
                subprocess.run([program, str(document), str(out)], check=True, capture_output=True)
                shutil.copyfile(out / "model.safetensors", HERE / f"{name}_{kind}.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
