"""Figures of README and docs are those of their records, at the precision printed; none is without one.

A paragraph with measured figures ends in a comment: `<!-- record FILE: FIGURE = KEY; FIGURE = KEY -->`. README's
table of costs and benchmarks/RESULTS.md are written from the records by a script."""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.repository.documents import FOR_READERS, PROJECT, figures, name_of, paragraphs

from samebits.numerics.elementary import MAXIMUM_ULP, evaluate

RESULTS = PROJECT / "benchmarks" / "results"
MARK = re.compile(r"<!-- record (\S+): (.*?) -->", re.DOTALL)
# A page's figures that no record has, and what they are instead.
ALLOWED = {
    ("docs/checking.md", "95"): "the share of searches for which a bound is computed: chosen, not measured",
    ("docs/training.md", "0.9 0.999 1.0"): "defaults of settings",
    ("docs/parallel_layout.md", "1.4 2.25"): "follow from the formulas in the same sentence; computed below",
    ("docs/parallel_layout.md", "2.00 4.00 8.00 1.12 1.38 1.88 1.03 1.09 1.22"): "computed below",
    ("docs/elementary.md", "ulp"): "computed again below, each at the input that the table names",
    (
        "docs/on_policy.md",
        "9.5e-07 0.9999995 1.0000010 9.5e-07 0.9999990 1.0000010 0.0045 0.9955 1.0041",
    ): "how far stock torch's probabilities were apart, said with its version and processor; no speed",
    ("docs/on_policy.md", "9.54e-07 0.999999046 1.00000095"): "what the example beside it printed; no speed",
}


def report() -> ModuleType:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(PROJECT / "benchmarks"))
        return importlib.import_module("report")


def at_printed_precision(printed: str, value: float) -> bool:
    """Whether a value, rounded as the printed one is, gives it. Zeros that end a whole number are no digits of it."""
    shown = Decimal(printed.removesuffix("%").strip().replace(",", ""))
    if printed.endswith("%"):
        value *= 100
    step = Decimal(1).scaleb(int(shown.as_tuple().exponent))
    if step == 1:
        digits = str(shown)
        step = Decimal(10) ** (len(digits) - len(digits.rstrip("0")))
    return abs(Decimal(repr(value)) - shown) <= step / 2


def looked_up(record: Any, key: str) -> Any:
    """`rows.3.ratio`: keys and places, joined by dots."""
    for part in key.split("."):
        record = record[int(part)] if isinstance(record, list) else record[part]
    return record


def faults_of(text: str, page: str, root: Path = PROJECT) -> list[str]:
    """What is wrong with the figures of a page."""
    found = []
    for paragraph in paragraphs(text):
        left, prose = figures(paragraph), MARK.sub("", paragraph)
        for file, pairs in MARK.findall(paragraph):
            for printed, key in (pair.split(" = ") for pair in " ".join(pairs.split()).split("; ")):
                if not re.search(rf"(?<![\d.,]){re.escape(printed)}(?![\d.]|,\d)", " ".join(prose.split())):
                    found.append(f"{page}: {printed} of {file} is not in the text")
                value = looked_up(json.loads((root / file).read_text()), key)
                if not at_printed_precision(printed, value):
                    found.append(f"{page}: {printed} is {value} in {file}: {key}")
                left = [each for each in left if each != printed.removesuffix("%").strip()]
        reasons = {key for name, key in ALLOWED if name == page}
        known = " ".join(left) in reasons or ("ulp" in reasons and "worst input" in paragraph)
        if left and not known:
            found.append(f"{page}: {', '.join(left)}: no record is named, and it is not allowed without one")
    return found


@pytest.mark.parametrize("page", FOR_READERS, ids=name_of)
def test_every_figure_is_that_of_its_record(page: Path) -> None:
    assert faults_of(page.read_text(), name_of(page)) == []


def test_every_allowed_figure_is_still_there() -> None:
    for (page, words), reason in ALLOWED.items():
        shown = [" ".join(figures(paragraph)) for paragraph in paragraphs((PROJECT / page).read_text())]
        assert reason and (words in shown or words == "ulp"), f"{page}: {words}"


MEASURED = "It took 1.25 s, 46 % of all.\n<!-- record r.json: 1.25 = a.0.b; 46 % = c -->\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (MEASURED, None),
        (MEASURED.replace("1.25 s", "1.26 s"), "1.25 of r.json is not in the text"),
        (MEASURED.replace("1.25", "1.26"), "1.26 is 1.2512 in r.json: a.0.b"),
        (MEASURED.replace("46 %", "47 %"), "47 % is 0.4571 in r.json: c"),
        (MEASURED.replace("all.", "all, and 3 times as fast."), "3: no record is named"),
        ("Embedding reaches 0.74.", "0.74: no record is named"),
        ("It waits 60 microseconds.", "60: no record is named"),
        ("It is 2 times\nas fast.", "2: no record is named"),
        ("With torch 2.11, GCC 12 and `lr=0.1`, on 2 cores.", None),
    ],
)
def test_a_changed_figure_and_one_without_a_record_are_noticed(text: str, fault: str | None, tmp_path: Path) -> None:
    """Planted faults."""
    (tmp_path / "r.json").write_text('{"a": [{"b": 1.2512}], "c": 0.4571}')
    found = faults_of(text, "page.md", tmp_path)
    assert bool(found) == (fault is not None), found
    assert fault is None or any(fault in each for each in found), found


@pytest.mark.parametrize(
    ("printed", "value", "same"),
    [
        ("101,500", 101509, True),
        ("101,500", 101551, False),
        ("0.35", 0.3493, True),
        ("0.34", 0.3493, False),
        ("46 %", 0.457, True),
        ("10.21", 10.2116, True),
        ("50", 50, True),
        ("50", 56, False),
    ],
)
def test_a_figure_is_compared_at_the_precision_printed(printed: str, value: float, same: bool) -> None:
    assert at_printed_precision(printed, value) is same


# README's table of costs, and the page with every line


def behind(value: Any, name: str = "") -> Iterator[tuple[str, float, bool]]:
    """Every ratio of a record that is below 1, and whether it misses its target; without the script that is judged."""
    if isinstance(value, list):
        for each in value:
            yield from behind(each, name)
    elif isinstance(value, dict):
        name = str(value.get("name", value.get("case", name)))
        slow = value.get("samebits_ms", 0.0) > value.get("baseline_ms", math.inf)
        missed = value.get("met", value.get("ratio", 1.0) >= (value.get("target") or 0.0)) is False
        for key in ("ratio", "call_ratio", "speedup"):
            if key in value and (value[key] < 0.9995 or slow or missed):
                yield name, value[key], missed
        for each in value.values():
            yield from behind(each, name)


def left_out(section: str) -> list[str]:
    """Bad lines of records that a section lacks: the name of the case and then its ratio, in one row of the record."""
    parts = re.split(r"(?=^## )", section.replace(" |\n", ";\n"), flags=re.MULTILINE)
    found = []
    for path in sorted(RESULTS.glob("*.json")):
        part = " ".join("".join(part for part in parts if f"results/{path.name}" in part).split())
        record = json.loads(path.read_text())
        if record.get("verdict") == "does not hold" and "all targets together: does not hold" not in part:
            found.append(f"{path.name}: does not hold")
        for name, ratio, missed in behind(record):
            words = re.escape(re.sub(r"\((\d+(?:, \d+)+)\)", lambda sizes: sizes[1].replace(", ", "x"), name))
            words = words.replace(r"\ fb", ", forward and backward,")
            verdict = r"[^;,]*\*\*does not hold\*\*" if missed else ""
            # Of a case's several ratios this may be the last.
            if not re.search(rf"{words}[^;]*?[ :]({ratio:.2f}|{ratio:.3f})(?!\d){verdict}", part):
                found.append(f"{path.name}: {name} {ratio:.3f}")
    return found


def test_readme_and_the_page_of_results_are_what_the_records_say() -> None:
    made, page = report(), (PROJECT / "README.md").read_text()
    assert made.written(page, made.table()) == page, "run python benchmarks/report.py"
    assert (PROJECT / "benchmarks" / "RESULTS.md").read_text() == f"{made.HEAD}{made.section()}\n"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(
            (f"{kind}.json", "rows")
            for kind in ("cpu", "cpu_operators", "arm_cpu", "arm_cpu_operators", "arm_cpu_model")
        ),
        *(
            (f"{kind}.json", "rows")
            for kind in ("h200_attention", "h200_decode_attention", "h200_long_rows", "post_merge")
        ),
        ("h200_operators.json", "operators"),
        ("h200_decode.json", "lines"),
    ],
)
def test_a_row_of_the_table_has_the_lowest_ratio_and_counts_what_is_bad(name: str, key: str) -> None:
    """Against the record itself."""
    rows = json.loads((RESULTS / name).read_text())[key]
    (line,) = [line for line in (PROJECT / "README.md").read_text().splitlines() if f"results/{name})" in line]
    *_, lowest, slower, missed = line.strip("| ").split(" | ")
    ratios = [row["ratio"] for row in rows]
    assert float(lowest.partition(":")[0]) == pytest.approx(min(ratios), abs=0.005)
    assert slower == f"{sum(ratio < 0.9995 for ratio in ratios)} of {len(ratios)}"
    bad = sum(row.get("target") is not None and row["ratio"] < row["target"] for row in rows)
    assert missed == (f"**{bad}**" if bad else "none")


def test_every_line_that_is_slower_or_does_not_hold_is_on_the_page() -> None:
    assert left_out(report().section()) == []
    bad = [line for path in RESULTS.glob("*.json") for line in behind(json.loads(path.read_text()))]
    assert len(bad) > 40


@pytest.mark.parametrize(
    ("was", "now", "names"),
    [
        ("embedding | {embedding:.2f}", "", "h200_operators.json: embedding {embedding:.3f}"),
        ("softmax | {softmax:.2f}", "softmax | 0.99", "h200_operators.json: softmax {softmax:.3f}"),
        (
            "softmax backward 2048x576 | 0.87 (wanted 1.00:",
            "softmax backward 2048x576 | 0.87 |\n(wanted 1.00:",
            "cpu_operators.json: softmax backward 0.873",
        ),
        ("together: does not hold", "together: fine", "h200_operators.json: does not hold"),
        ("step, tensor 2: 0.45", "step, tensor 2: good", "cpu_ranks.json: step, tensor 2 0.453"),
    ],
)
def test_a_line_left_out_is_noticed(was: str, now: str, names: str) -> None:
    """Planted faults: a writer that leaves a bad line out, or tells another ratio."""
    record = json.loads((RESULTS / "h200_operators.json").read_text())
    measured = {each["name"]: each["ratio"] for each in record["operators"]}
    was, names = was.format(**measured), names.format(**measured)
    section = re.sub(r"\n  ", " ", report().section())
    assert was in section and names in left_out(section.replace(was, now))


def test_a_record_that_no_part_reads_is_refused(tmp_path: Path) -> None:
    """Planted fault: a record that the section would pass over."""
    (tmp_path / "new.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"no part reads new\.json"):
        report().section(tmp_path)


# Figures that are computed


TRUE: dict[str, Callable[[float], float]] = {
    "exp": math.exp,
    "exp2": math.exp2,
    "log": math.log,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}


def test_errors_of_elementary_functions_are_those_at_their_worst_inputs() -> None:
    rows = re.findall(
        r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \| `0x(\w{8})`", (PROJECT / "docs/elementary.md").read_text(), re.M
    )
    assert {name for name, *_ in rows} == set(TRUE)
    for name, stated, measured, bits in rows:
        x = np.array([int(bits, 16)], dtype=np.uint32).view(np.float32)
        true = TRUE[name](float(x[0]))
        _, exponent = math.frexp(true)
        error = abs(float(evaluate(name, x)[0]) - true) / 2.0 ** max(exponent - 24, -149)
        assert float(stated) == MAXIMUM_ULP[name] and f"{error:.4f}" == measured, f"{name}: {error}"


def test_shares_of_a_product_that_travels_are_computed() -> None:
    page = (PROJECT / "docs" / "parallel_layout.md").read_text()
    for rows in (128, 1024, 4096):
        tiles = rows // 128
        cells = " | ".join(f"{(tiles + ranks - 1) / tiles:.2f}" for ranks in (2, 4, 8))
        assert f"| {rows:,} | {cells} |" in page
    chains, plain = {e: 28 + 4 * e for e in (4, 2)}, {e: 8 * e for e in (4, 2)}
    assert (f"{chains[4] / plain[4]:.1f}", f"{chains[2] / plain[2]:.2f}") == ("1.4", "2.25")
