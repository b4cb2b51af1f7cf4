"""`samebits serve` as a process: one line when ready, an orderly end on SIGTERM, one-line errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.infer.serving import PATIENCE, model, offline, tokenizer, wait_for

from samebits.cli import main
from samebits.infer.server.serving import listen
from samebits.model.huggingface import save_folder

# With this seed the model does not end the text itself.
ASKED: dict[str, Any] = {"model": "minute", "prompt": "The same bits", "seed": 6, "max_tokens": 480, "logprobs": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "minute"
    save_folder(model(), place, tokenizer())
    return place


@contextmanager
def process(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server and its address."""
    words = [sys.executable, "-m", "samebits.cli", "serve", "--model", str(folder), "--port", "0", "--json", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            said = json.loads(running.stdout.readline())
            assert said["schema"] == "samebits.serve/1" and said["model"] == "minute"
            assert said["decode_step"] == "plain"
            yield running, said["address"]
        finally:
            running.kill()


def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=PATIENCE)


def test_running_answers_end_and_new_ones_are_refused(folder: Path) -> None:
    """SIGTERM in the middle of a stream: the stream ends as it would have, others get 503, the process exits with 0."""
    with process(folder, "--grace", "50") as (running, address), client(address) as made, httpx.Client() as web:
        stream = iter(made.completions.create(**ASKED, stream=True))
        pieces = [next(stream)]
        running.send_signal(signal.SIGTERM)
        # The signal is seen in its own time; from the first refusal on, everything is refused.
        wait_for(lambda: web.get(f"{address}/health").status_code == 503)
        assert web.get(f"{address}/health").json() == {"status": "the server is stopping"}
        with pytest.raises(openai.InternalServerError, match="the server is stopping") as refused:
            made.completions.create(**ASKED)
        assert refused.value.status_code == 503 and refused.value.response.headers["retry-after"] == "1"
        pieces += stream
        ids = [each for piece in pieces for each in piece.choices[0].logprobs.samebits["ids"]]
        bits = [each for piece in pieces for each in piece.choices[0].logprobs.samebits["bits"]]
        prompt = tokenizer().encode(ASKED["prompt"])
        assert pieces[-1].choices[0].finish_reason == "length" and len(ids) == 480
        assert bits == offline([*prompt, *ids])[len(prompt) - 1 :]
        assert running.wait(PATIENCE) == 0 and running.stderr is not None and running.stderr.read() == ""


def test_what_does_not_end_in_its_grace_is_cancelled(folder: Path) -> None:
    """No grace: the stream says why it ends, the process exits with 0."""
    with process(folder, "--grace", "0") as (running, address), client(address) as made:
        stream = iter(made.completions.create(**ASKED, stream=True))
        next(stream)
        running.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="the server is stopping"):
            list(stream)
        assert running.wait(PATIENCE) == 0


def test_what_cannot_be_served_is_said_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def serve(*options: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as ended:
            main(["serve", *options])
        return ended.value.code, capsys.readouterr().err

    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        code, words = serve("--model", str(folder), "--port", port)
    assert code == 2 and words.startswith(f"samebits: serve: 127.0.0.1:{port} cannot be listened on: ")
    assert "Address already in use" in words and words.count("\n") == 1
    code, words = serve("--model", str(folder), "--port", "0", "--max-queue", "0")
    assert (code, words) == (2, "samebits: limits: queue is 0; allowed: a whole number, at least 1\n")
    code, words = serve("--model", "smolm2", "--port", "0")
    assert code == 2 and "did you mean 'smollm2'?" in words and words.count("\n") == 1


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    words = capsys.readouterr().out
    assert "samebits serve --model smollm2" in words and "--json" in words and "SAMEBITS_API_KEY" in words


def test_a_missing_package_is_named() -> None:
    """As on a machine where samebits is installed without what serving needs."""
    code = "import sys; sys.modules['starlette'] = None; from samebits.cli import main; main(['serve', '--model', 'x'])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    said = "serve needs the package 'starlette', which is not installed; pip install samebits[serve]"
    assert (ran.returncode, ran.stderr) == (3, f"samebits: {said}\n")
