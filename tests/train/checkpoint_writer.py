"""A process that writes checkpoints until it is killed, the faulty writers beside it, and the judge of what is left.

Run as a script it forks one writer for every line it is sent, so that a kill costs no new interpreter."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from samebits.records.durable import put
from samebits.train import checkpoint
from samebits.train.manifest import FILES, MANIFEST, MARKER, WHOLE, Entry, Manifest, digest_of, encoded_json, name_of

# Two files of a few MiB: long enough to be hit in.
NUMBERS = 1 << 19
# The fewest allowed: every write removes a step, and a slow reader loses its own.
KEEP = 2
REMOVING = "removing an old step"


def content(step: int, numbers: int = NUMBERS) -> dict[str, Any]:
    """What a step writes: no two steps share a number, so that a mixture shows."""
    first = torch.arange(numbers, dtype=torch.int32) + step * numbers
    weights = {"first": first, "second": torch.tensor([step, -step], dtype=torch.int64)}
    return {"weights": weights, "optimizer": {"moment": first * 3 + 1}, "state": {"step": step, "rate": 1 / (step + 3)}}


def same(found: checkpoint.Checkpoint, numbers: int = NUMBERS) -> bool:
    wanted = content(found.step, numbers)
    held = {"weights": found.weights, "optimizer": found.optimizer}
    tensors = all(
        held[part].keys() == wanted[part].keys()
        and all(torch.equal(held[part][name], wanted[part][name]) for name in wanted[part])
        for part in held
    )
    return tensors and found.state == wanted["state"]


def sound(folder: Path, step: int) -> None:
    checkpoint.write(folder, step, **content(step), keep=KEEP)


def marker_first(folder: Path, step: int) -> None:
    """Planted fault: the marker and its manifest are right, but there before the data."""
    directory, made = folder / name_of(step), content(step)
    data = {
        "weights.safetensors": safetensors.torch.save(made["weights"]),
        "optimizer.safetensors": safetensors.torch.save(made["optimizer"]),
        "state.json": encoded_json(made["state"]),
    }
    manifest = Manifest(
        step, "blake3", {name: Entry(len(data[name]), digest_of(data[name], "blake3")) for name in FILES}
    )
    directory.mkdir(parents=True)
    put(directory / MANIFEST, manifest.encoded())
    put(directory / MARKER, f"{manifest.digest}\n".encode())
    for name in FILES:
        put(directory / name, data[name])


WRITERS: dict[str, Callable[[Path, int], None]] = {"sound": sound, "marker_first": marker_first}


def next_step(folder: Path) -> int:
    return max(checkpoint.committed(folder), default=-1) + 1


def serve() -> None:
    """A line `writer folder` forks a writer, any line after it kills that one.

    Each step that the writer finished and the signal that ended it come back as lines."""
    torch.set_num_threads(1)
    print("ready", flush=True)
    while line := sys.stdin.readline():
        writer, folder = line.split()
        if (pid := os.fork()) == 0:
            _write_on(WRITERS[writer], Path(folder))
        sys.stdin.readline()
        # Not reaped yet, so that the number is still this writer's, alive or not.
        os.kill(pid, signal.SIGKILL)
        print(f"dead {os.WTERMSIG(os.waitpid(pid, 0)[1])}", flush=True)


def _write_on(writer: Callable[[Path, int], None], folder: Path) -> None:
    try:
        os.write(1, b"begun\n")
        for step in count(next_step(folder)):
            writer(folder, step)
            os.write(1, f"done {step}\n".encode())
    except BaseException:
        traceback.print_exc()
    os._exit(1)


@dataclass
class Forge:
    """The process that forks writers, held by a test."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls) -> Forge:
        process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        forge = cls(process)
        assert forge.line() == "ready"
        return forge

    def line(self) -> str:
        assert self.process.stdout
        text = self.process.stdout.readline()
        assert text, "the process that forks writers has ended"
        return text.strip()

    def say(self, text: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def begin(self, writer: str, folder: Path) -> None:
        self.say(f"{writer} {folder}")
        assert self.line() == "begun"

    def kill(self) -> int:
        """The last step that the writer said it had finished, -1 if none."""
        self.say("kill")
        last = -1
        while not (line := self.line()).startswith("dead"):
            last = int(line.removeprefix("done "))
        assert line == f"dead {int(signal.SIGKILL)}", "the writer ended before it was killed"
        return last

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def landed(folder: Path) -> str:
    """Where in a write the kill landed, as its leftovers tell; empty where it landed in none.

    The folder was clean when the writer began, so that every leftover is of this kill."""
    steps = sorted(folder.glob("step-*"))
    bare = [path for path in steps if not (path / MARKER).exists()]
    if bare and bare[-1] == steps[-1]:
        return f"writing, {len(list(bare[-1].iterdir()))} files begun"
    latest = folder / "latest"
    if steps and not (latest.exists() and latest.read_text().strip() == steps[-1].name):
        return "committed, not yet named"
    return REMOVING if bare else ""


def strays(folder: Path) -> list[str]:
    """What is there beside whole committed steps and the name of the newest."""
    steps = [name_of(step) for step in checkpoint.committed(folder)]
    wanted = {"latest", *steps, *(f"{step}/{name}" for step in steps for name in WHOLE)}
    return sorted({str(path.relative_to(folder)) for path in folder.rglob("*")} ^ wanted)


def judge(folder: Path, finished: int) -> list[str]:
    """What is wrong after a kill: nothing, for a writer that can be trusted."""
    wrong, steps = [], checkpoint.committed(folder)
    for step in steps:
        try:
            if not same(checkpoint.read(folder, step)):
                wrong.append(f"step {step} holds what it did not write")
        except ValueError as error:
            wrong.append(f"step {step} is committed and cannot be read: {error}")
    if finished > max(steps, default=-1):
        wrong.append(f"step {finished} was finished and is not there")
    if steps and not wrong:
        newest = checkpoint.read(folder)
        if newest.step != steps[-1]:
            wrong.append(f"the newest read is {newest.step}, the newest committed {steps[-1]}")
        wrong += [line for line in newest.skipped if "not committed" not in line]
    return wrong


@dataclass
class Tally:
    """Kills, those that landed inside a write by place, and what was wrong after any of them."""

    kills: int = 0
    inside: Counter[str] = field(default_factory=Counter)
    removing: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        places = ", ".join(f"{count} {place}" for place, count in sorted(self.inside.items()))
        total = self.inside.total()
        return f"{self.kills} kills, {total} inside a write ({places}), {self.removing} {REMOVING}; wrong: {self.wrong}"


def campaign(forge: Forge, folder: Path, *, inside: int, most: int, seed: int, writer: str = "sound") -> Tally:
    """Kills until `inside` landed between a step's directory and its name in `latest`, or something is wrong."""
    tally, moments, duration = Tally(), random.Random(seed), _duration(folder.with_name("timed"))
    while tally.inside.total() < inside and tally.kills < most and not tally.wrong:
        forge.begin(writer, folder)
        time.sleep(moments.uniform(0, 3 * duration))
        finished = forge.kill()
        tally.kills += 1
        if (place := landed(folder)) == REMOVING:
            tally.removing += 1
        elif place:
            tally.inside[place] += 1
        tally.wrong = judge(folder, finished)
        checkpoint.write(folder, step := next_step(folder), **content(step), keep=KEEP)
        tally.wrong += [f"{stray} was not swept" for stray in strays(folder)]
    return tally


def _duration(folder: Path) -> float:
    """Seconds of one write here: only where kills land depends on it, no result."""
    start = time.perf_counter()
    sound(folder, next_step(folder))
    return time.perf_counter() - start


if __name__ == "__main__":
    serve()
