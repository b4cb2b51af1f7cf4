"""Records what mergekit makes of the recipes: run by hand in an environment of its own, never by a test.

    python tests/post/mergekit/record.py FOLDER_OF_MODELS mergekit-yaml

`FOLDER_OF_MODELS` has a, b, c, d as `tests/post/small_models.py` writes them, and RECIPE.yaml for each recipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main(folder: Path, program: str) -> None:
    for recipe in sorted(folder.glob("*.yaml")):
        out = folder / f"out_{recipe.stem}"
        subprocess.run([program, str(recipe), str(out)], check=True, capture_output=True)
        (Path(__file__).parent / f"{recipe.stem}.safetensors").write_bytes((out / "model.safetensors").read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
