"""Chat templates in processes of their own: what no count sees is stopped, others are not held up, nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from samebits.model import template, template_worker
from samebits.model.template import WORKERS, Template

SAID = [{"role": "user", "content": "Why is the sky blue?"}]
HONEST = "{% for message in messages %}<{{ message.role }}>{{ message.content | trim }}{% endfor %}"
DOUBLED = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
# Each a single call of the interpreter on data that is small in memory and without end when it is walked.
UNCOUNTED = {
    "written": DOUBLED + "{{ ns.x }}",
    "measured": DOUBLED + "{{ ns.x | string | length }}",
    "compared": DOUBLED + "{% set a = ns.x %}" + DOUBLED + "{{ a == ns.x }}",
    "ordered": DOUBLED + "{% set a = ns.x %}" + DOUBLED + "{{ a < ns.x }}",
    "found": DOUBLED + "{% set a = ns.x %}" + DOUBLED + "{{ a in [ns.x] }}",
    "as json": DOUBLED + "{{ ns.x | tojson }}",
    "sorted": DOUBLED + "{% set a = ns.x %}" + DOUBLED + "{{ {'a': a, 'b': ns.x} | dictsort(by='value') }}",
    "joined": DOUBLED + "{{ [ns.x] | join }}",
    "mapped": DOUBLED + "{{ [ns.x] | map('string') | list }}",
    "indexed": DOUBLED + "{% set a = ns.x %}" + DOUBLED + "{{ [a].index(ns.x) }}",
}
PATIENCE = 120.0


def children() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if template.WORKER.name in " ".join(each.cmdline())]


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("name", UNCOUNTED)
def test_what_no_count_sees_is_stopped(name: str) -> None:
    """The process ends, or runs out of memory of its own; the next rendering is as before."""
    with pytest.raises(ValueError, match=r"chat template: .*; allowed: one that renders, within its bounds") as refused:
        Template(UNCOUNTED[name]).render(SAID)
    assert "the processor's time" in str(refused.value) or "MemoryError" in str(refused.value)
    assert Template(HONEST).render(SAID) == "<user>Why is the sky blue?"


def test_a_template_that_hurts_where_it_is_compiled() -> None:
    hurtful = (
        "{{ " + "-" * 60_000 + "1 }}",
        "{% if 1 %}" * 6_000,
        "{{ " + "[" * 30_000,
        "{{ 1" + "+1" * 30_000 + " }}",
    )
    for source in hurtful:
        with pytest.raises(ValueError, match="chat template: "):
            Template(source).render(SAID)


def test_honest_ones_are_answered_beside_one_that_is_not() -> None:
    """One worker is busy for as long as it may; the others answer many threads, and refuse no valid request."""
    with ThreadPoolExecutor(9) as pool:
        bad = pool.submit(Template(UNCOUNTED["written"]).render, SAID)
        wait_for(lambda: bool(children()))
        found = list(pool.map(lambda n: Template(HONEST).render([{"role": "user", "content": f"{n}"}]), range(200)))
        assert found == [f"<user>{n}" for n in range(200)]
        with pytest.raises(ValueError, match="chat template: "):
            bad.result()
    assert 1 <= len(children()) <= WORKERS


def test_a_budget_is_that_of_one_rendering() -> None:
    """Each takes most of what one may; eight at one time take no more from each other than one after another."""
    # Numbers are paid for when they are made, when they are handed over, and when the loop takes them.
    source = f"{{% for a in range({template_worker.MOST_WORK // template_worker.STEP // 4}) %}}{{% endfor %}}done"
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: Template(source).render(SAID), range(8))) == ["done"] * 8


def test_the_clock_ends_what_the_processor_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a worker that sleeps, which takes no time of the processor."""
    monkeypatch.setattr(template, "WALL_SECONDS", 0.2)
    asleep = template._Worker()
    os.kill(asleep._process.pid, signal.SIGSTOP)
    answer = asleep.ask(b"{}\n")
    asleep.close()
    assert answer["error"].startswith("it was ended") and asleep._process.returncode == -signal.SIGKILL


def test_memory_comes_back() -> None:
    """A worker that has grown is not kept."""
    Template(HONEST).render(SAID)
    before = {each.pid for each in children()}
    large = [{"role": "user", "content": "\U0001f600" * 50_000}] * 60
    kept = "{% set ns = namespace(x=[]) %}{% for m in messages %}{% set ns.x = ns.x + [m.content + '!'] %}{% endfor %}"
    assert Template(kept + "done").render(large) == "done"
    assert before - {each.pid for each in children()}
    assert max(each.memory_info().rss for each in children()) < 100 << 20


def test_workers_go_with_their_parent() -> None:
    """Killed with no time to say so, in the middle of a rendering: a second later the worker is gone as well."""
    code = (
        "import sys, threading, psutil\nfrom samebits.model.template import Template\n"
        "Template('{{ 1 }}').render([])\n"
        "threading.Thread(target=lambda: Template(sys.argv[1]).render([]), daemon=True).start()\n"
        "print(*(each.pid for each in psutil.Process().children()), flush=True)\nsys.stdin.read()\n"
    )
    words = [sys.executable, "-c", code, UNCOUNTED["written"]]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(each) for each in parent.stdout.readline().split()]
        assert workers
        parent.kill()
    wait_for(lambda: not any(psutil.pid_exists(each) for each in workers))


def test_a_worker_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMEBITS_API_KEY", "a key")
    worker = template._Worker()
    surroundings = Path(f"/proc/{worker._process.pid}/environ")
    wait_for(lambda: b"PYTHONHASHSEED" in surroundings.read_bytes())
    assert b"SAMEBITS_API_KEY" not in surroundings.read_bytes()
    worker.close()
