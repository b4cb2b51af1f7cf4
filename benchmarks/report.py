"""README's table of costs and benchmarks/RESULTS.md, written from the records: `python benchmarks/report.py`.

`--check` only compares. RESULTS.md has every ratio of every record, the lowest first; README a line a record, with the
lowest. A record that no part here reads is an error, so that none can be left out."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from report_lines import SAME, Listed, Part, Record, figure
from report_parts import PARTS

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
PAGE = ROOT / "benchmarks" / "RESULTS.md"
BEGIN = "<!-- costs: written by benchmarks/report.py from benchmarks/results; change a record, not this text -->"
END = "<!-- end of costs -->"
WIDTH = 125
# Records that say nothing of speed; tests/repository compares them with where they are shown.
PICTURES = {"cpu_orders.json"}
HEAD = """# What it costs, record by record

Written by `python benchmarks/report.py` from [the records](results). Ratios of one run on one machine, both sides in
turns; above 1 samebits is faster. The lowest stand first; what misses the target that its script sets says so. What was
tried, and what did not work: [the notes](NOTES.md).

"""
TABLE = """| what, beside what | machine | median | lowest | slower | targets missed |
| --- | --- | --- | --- | --- | --- |
"""


def records(results: Path) -> Iterator[tuple[Part, Record]]:
    """Every part with its record."""
    unread = {path.name for path in results.glob("*.json")} - {part.file for part in PARTS} - PICTURES
    if unread:
        raise SystemExit(f"report: no part reads {', '.join(sorted(unread))}; allowed: a Part for each record")
    for part in PARTS:
        yield part, json.loads((results / part.file).read_text())


def section(results: Path = RESULTS, folder: str = "results") -> str:
    """All that the records say; they are in `folder`, seen from the page."""
    blocks = []
    for part, record in records(results):
        compared = f"{part.compared[0].upper()}{part.compared[1:]}. " if part.compared else ""
        made = f"{record['script']}`, {record['date']}, {versions(record)}"
        points = part.write(record)
        said = "\n".join(wrapped(f"- {point}", "  ") for point in points if not isinstance(point, Listed))
        tables = [point.rows() for point in points if isinstance(point, Listed)]
        about = wrapped(f"{compared}[Record]({folder}/{part.file}) of `{made}.")
        blocks += [f"## {part.title}: {record['machine']}", about, *([said] if said else []), *tables]
    return "\n\n".join(blocks)


def table(results: Path = RESULTS) -> str:
    """A row for each list of ratios, with the lowest; and what the records without ratios say."""
    rows, others = [], []
    for part, record in records(results):
        points, link = part.write(record), f"[{part.title}](benchmarks/results/{part.file})"
        lists = [each for each in points if isinstance(each, Listed)]
        rows += [f"| {link}{beside(part, each)} | {record['machine']} | {summary(each)} |" for each in lists]
        if not lists:
            others.append(wrapped(f"- {link}, {record['machine']}: {'; '.join(map(str, points))}", "  "))
    return "\n\n".join([TABLE + "\n".join(rows), "\n".join(others)])


def beside(part: Part, each: Listed) -> str:
    return "".join(f", {words}" for words in (each.label, part.rival) if words)


def summary(each: Listed) -> str:
    """Median, lowest, how many are slower, and missed targets of one list, as cells."""
    lowest, missed = each.lowest(), sum(line.missed is not None for line in each.lines)
    slower = sum(line.ratio < SAME for line in each.lines)
    verdict = f"**{missed}**" if missed else "none"
    cells = (figure(each.median()), f"{figure(lowest.ratio)}: {lowest.case.rstrip(',')}")
    return " | ".join((*cells, f"{slower} of {len(each.lines)}", verdict))


def wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def versions(record: Record) -> str:
    known = record | record.get("environment", {})
    triton = f", Triton {known['triton']}" if "triton" in known and "NVIDIA" in record["machine"] else ""
    return f"torch {known['torch']}{triton}"


def written(page: str, text: str) -> str:
    """The page with this text between its marks."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise SystemExit(f"report: the page has not one {BEGIN!r} and one {END!r}")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is another")
    options = parser.parse_args()
    wanted = {README: written(README.read_text(), table()), PAGE: f"{HEAD}{section()}\n"}
    other = [page.name for page, text in wanted.items() if not page.is_file() or page.read_text() != text]
    if options.check:
        print(f"not what the records say: {', '.join(other)}" if other else "the pages agree with the records")
        return 1 if other else 0
    for page, text in wanted.items():
        page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
