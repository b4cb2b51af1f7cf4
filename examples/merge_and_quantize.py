"""Two small models merged, the merge pruned and quantised, and the result asked for a few tokens: all in a new folder.

python examples/merge_and_quantize.py FOLDER"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from samebits.model.huggingface import save_folder
from samebits.model.loading import load


def samebits(*words: str) -> str:
    ended = subprocess.run([sys.executable, "-m", "samebits.cli", *words], check=True, capture_output=True, text=True)
    return ended.stdout.strip()


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    for seed in (0, 1):
        loaded = load(f"tiny@{seed}")
        save_folder(loaded.model, folder / f"model{seed}", loaded.tokenizer)
    recipe = {
        "models": [{"model": str(folder / f"model{seed}")} for seed in (0, 1)],
        "merge_method": "slerp",
        "base_model": str(folder / "model0"),
        "parameters": {"t": [{"filter": "mlp", "value": [0.0, 1.0]}, {"value": 0.5}]},
    }
    # JSON is YAML.
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    merged, sparse, small = (str(folder / name) for name in ("merged", "sparse", "small"))
    print(samebits("merge", str(folder / "recipe.yaml"), "--out", merged))
    print(samebits("prune", merged, "--method", "magnitude", "--out", sparse))
    print(samebits("quantize", sparse, "--format", "q4_1", "--method", "rtn", "--out", small))
    words = ("--prompt", "def main():", "--max-tokens", "4", "--temperature", "0", "--logprobs")
    print(samebits("generate", "--model", f"{small}/model.gguf", *words))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
