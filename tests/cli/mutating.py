"""Files that are almost right, for tests: a valid config, recipe or tokenizer with one or more values gone wrong."""

from __future__ import annotations

import copy
import json
import math
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.train.small_run import TEXT

from samebits.model import PRESETS, Model
from samebits.model.huggingface import save_folder
from samebits.model.tokenizer import Tokenizer

WRONG: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63) - 1,
    2**64 + 1,
    10**30,
    1.5,
    -0.5,
    1e308,
    1e-320,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "x",
    "\x1b[31m",
    "é" * 5000,
    [],
    [1],
    [[[]]],
    {},
    {"a": 1},
    [None],
    "nan",
    "true",
    "../../x",
    "0" * 400,
)
FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document that holds a value."""
    if isinstance(value, dict):
        inner = [each for key, item in value.items() for each in places(item, (*path, key))]
        return [path, *inner] if path else inner
    if isinstance(value, list):
        return [path, *(each for number, item in enumerate(value[:3]) for each in places(item, (*path, number)))]
    return [path]


def mutated(document: Any, chance: random.Random) -> Any:
    """The document with a value replaced, left out or put in; sometimes two."""
    made = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 1, 2))):
        path = chance.choice(places(made) or [()])
        holder = made
        for step in path[:-1]:
            holder = holder[step]
        if not path:
            return chance.choice(WRONG)
        if chance.random() < 0.1:
            del holder[path[-1]]
        elif chance.random() < 0.1 and isinstance(holder, dict):
            holder[chance.choice(("extra", "", "rope_scaling", "quantization_config"))] = chance.choice(WRONG)
        else:
            holder[path[-1]] = copy.deepcopy(chance.choice(WRONG))
    return made


def cut(data: bytes, chance: random.Random) -> bytes:
    """Bytes with one changed, taken out, or the rest left out."""
    place = chance.randrange(len(data))
    return chance.choice(
        (
            data[:place],
            data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :],
            data[:place] + data[place + 1 :],
            data[:place] + data[place : place + 9] * 3 + data[place:],
        )
    )


def model_folder(folder: Path) -> Path:
    """A small model in Hugging Face's layout."""
    if not folder.exists():
        save_folder(Model.new(PRESETS["tiny"], 0), folder, Tokenizer.of_bytes())
    return folder


def damaged_folder(good: Path, folder: Path, chance: random.Random) -> str:
    """A copy of the folder in which one file is damaged; which."""
    folder.mkdir()
    for file in good.iterdir():
        (folder / file.name).symlink_to(file)
    name = chance.choice((*FILES[:3], *FILES[:3], *FILES, "model.safetensors"))
    data = (good / name).read_bytes()
    (folder / name).unlink()
    if name == "model.safetensors":
        header = data[:4096]
        (folder / name).write_bytes(cut(header, chance) + data[4096:])
    elif chance.random() < 0.1:
        (folder / name).write_bytes(cut(data, chance))
    else:
        (folder / name).write_text(json.dumps(mutated(json.loads(data), chance)))
    return name


def damaged_recipe(chance: random.Random) -> str:
    """A recipe with a wrong value, as `--set` would say it, or with changed bytes."""
    import yaml

    if chance.random() < 0.2:
        return cut(TEXT.encode(), chance).decode("utf-8", "replace")
    return yaml.safe_dump(mutated(yaml.safe_load(TEXT), chance), allow_unicode=True)


# Runs many command lines in one process, each as `main` would be started; a line of JSON for each.
RUNNER = """
import contextlib, io, json, sys, time, traceback
from samebits.cli import main
for line in sys.stdin:
    words = json.loads(line)
    out, err, code, start, caught = io.StringIO(), io.StringIO(), 0, time.monotonic(), ""
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(words)
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        caught = traceback.format_exc()
    said = {"code": code, "out": out.getvalue(), "err": err.getvalue(), "caught": caught}
    said["seconds"] = time.monotonic() - start
    print(json.dumps(said), flush=True)
"""
MOST_SECONDS = 20.0
MOST_BYTES = 12 * 2**30


def wrong_answers(commands: list[list[str]]) -> list[str]:
    """Runs each command; what is wrong with how some of them ended: another code, more lines, a traceback, too long."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))

    given = "".join(f"{json.dumps(words)}\n" for words in commands)
    ran = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=given,
        capture_output=True,
        text=True,
        preexec_fn=limited,
        timeout=60 + MOST_SECONDS * len(commands),
    )
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    if len(found) != len(commands):
        return [f"{commands[len(found)]}: the process ended with {ran.returncode}: {ran.stderr[-500:]}"]
    return [
        f"{words}: {each['code']} {each['err'][-300:]} {each['caught'][-500:]}"
        for words, each in zip(commands, found, strict=True)
        if not _ended_well(each)
    ]


def _ended_well(each: dict[str, Any]) -> bool:
    """A result and no line, or code 2, one line and a document that says the same."""
    lines = [line for line in each["err"].splitlines() if line.startswith("samebits: ")]
    fails = each["code"] == 2
    if each["code"] not in (0, 1, 2) or each["caught"] or len(lines) != fails or "internal" in each["err"]:
        return False
    try:
        document = json.loads(each["out"])
    except ValueError:
        return False
    return ("error" in document) == fails and each["seconds"] < MOST_SECONDS
