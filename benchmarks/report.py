"""README's section on costs, written from the records: `python benchmarks/report.py`; `--check` only compares.

Every ratio of every record is in it, those below 1 and those that miss their target before all. A record that no part
here reads is an error, so that none can be left out."""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
BEGIN = "<!-- costs: written by benchmarks/report.py from benchmarks/results; change a record, not this text -->"
END = "<!-- end of costs -->"
# Where three decimals say 1.000, both sides took the same time.
SAME = 0.9995
WIDTH = 125
INVARIANT_TARGET = 0.9
LEAST_OF_THE_BANDWIDTH = {1: 0.85}
"""By requests at once, the share of the bandwidth limit that a decode step is to reach."""
# Records that say nothing of speed; tests/repository compares them with where they are shown.
PICTURES = {"cpu_orders.json"}

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One measured ratio, above 1 where samebits is faster."""

    case: str
    ratio: float
    setting: str = ""
    """What tells it from others of its case, e.g. the number of threads."""
    missed: float | None = None
    """The target that it does not reach."""

    def words(self) -> str:
        setting = f" {self.setting}" if self.setting else ""
        missed = "" if self.missed is None else f" (wanted {self.missed:.2f}: **does not hold**)"
        return f"{figure(self.ratio)}{setting}{missed}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What the section says of one record."""

    file: str
    title: str
    compared: str
    """What is divided by what."""
    write: Callable[[Record], list[str]]
    """The points under the title."""


def figure(ratio: float) -> str:
    """Two decimals; three where two would say that there is no difference."""
    two = f"{ratio:.2f}"
    return f"{ratio:.3f}" if two == "1.00" else two


def listed(lines: Iterable[Line]) -> list[str]:
    """Two points: what is slower, and what is not. All of a case stand together, where its lowest ratio belongs."""
    cases: dict[str, list[Line]] = {}
    for line in lines:
        cases.setdefault(line.case, []).append(line)

    def behind(case: str) -> bool:
        return any(line.ratio < SAME or line.missed is not None for line in cases[case])

    def joined(chosen: list[str]) -> str:
        return "; ".join(f"{case} {', '.join(line.words() for line in cases[case])}" for case in chosen) or "none"

    slower = [case for case in cases if behind(case)]
    return [f"slower: {joined(slower)}", f"as fast or faster: {joined([case for case in cases if case not in slower])}"]


def missed(row: Record) -> float | None:
    """The target of a row that does not reach it."""
    target = row.get("target")
    return target if target is not None and row["ratio"] < target else None


def sizes(shape: list[int]) -> str:
    return "x".join(map(str, shape))


def matmul_on_gpu(record: Record) -> list[str]:
    rows = [*record["matmul"], *record["gradients"], *record["rmsnorm"]]
    calls = listed(Line(case=product(row["name"]), ratio=row["call_ratio"]) for row in rows)
    return [
        f"geometric mean of {len(record['matmul'])} products {figure(record['geometric_mean'])}, lowest"
        f" {figure(record['lowest'])}; targets {record['bounds']['geometric_mean']:.2f} and"
        f" {record['bounds']['forward']:.2f}: {record['verdict']}",
        *listed(Line(case=product(row["name"]), ratio=row["ratio"]) for row in rows),
        *(f"called one by one from Python, where the host's share counts, {point}" for point in calls),
    ]


def product(name: str) -> str:
    """`linear (1, 4096, 4096)` as `linear 1x4096x4096`."""
    return re.sub(r"\((\d+(?:, \d+)+)\)", lambda found: found[1].replace(", ", "x"), name)


def operators_on_gpu(record: Record) -> list[str]:
    def line(row: Record) -> Line:
        width = f", width {row['width']}," if "width" in row else ""
        setting = ""
        if "ours_peak_bytes" in row:
            setting = f"in {figure(row['ours_peak_bytes'] / row['torch_peak_bytes'])} of torch's memory"
        return Line(case=f"{row['name']}{width}", ratio=row["ratio"], setting=setting, missed=missed(row))

    shapes = record["shapes"]
    batch, heads, tokens, head = shapes["attention"]
    rows, vocabulary = shapes["logprob"]
    return [
        f"attention: causal, {batch} sequences of {tokens:,} tokens, {heads} heads of {head}; logprob: {rows:,} rows"
        f" over {vocabulary:,} tokens; all targets together: {record['verdict']}",
        *listed(map(line, record["operators"])),
    ]


def training_on_gpu(record: Record) -> list[str]:
    return [
        f"{record['steps']} updates of {record['tokens_per_step']:,} tokens, {record['parameters']:,} weights:"
        f" {record['median_tokens_per_second']:,} tokens a second, {100 * record['median_mfu']:.0f} % of what our own"
        f" product reaches there; loss {record['first_loss']:.2f} to {record['last_loss']:.2f}; no contract broken"
    ]


def decoding_on_gpu(record: Record) -> list[str]:
    def line(row: Record) -> Line:
        words = (
            f"({row['ours_tokens_per_second']:,.0f} tokens a second,"
            f" {figure(row['of_the_bandwidth_limit'])} of the bandwidth limit)"
        )
        return Line(case=f"batch {row['batch']}", ratio=row["ratio"], setting=words)

    return listed(map(line, record["lines"]))


def decode_attention_on_gpu(record: Record) -> list[str]:
    """The kernel in use; the record has one beside it that is not."""
    return listed(Line(case=row["case"], ratio=row["ratio"], missed=missed(row)) for row in record["rows"])


def calls_on_gpu(record: Record) -> list[str]:
    least = record["least_mean"]

    def mean(name: str, told: Record) -> Line:
        words = f"(launched by Python {figure(told['mean_python_ratio'])})"
        found = told["mean_ratio"]
        return Line(case=name, ratio=found, setting=words, missed=least if name == "linear" and found < least else None)

    means = listed(mean(*each) for each in record["operators"].items())
    slower: dict[tuple[str, str], list[str]] = {}
    for row in record["rows"]:
        if row["ratio"] < SAME:
            slower.setdefault((row["operator"], row["model"]), []).append(f"{row['shape']} {figure(row['ratio'])}")
    cases = "; ".join(f"{name} of {model} {', '.join(rows)}" for (name, model), rows in slower.items())
    return [
        f"means of {len(record['rows'])} calls by operator, wanted of linear {least:.2f}",
        *means,
        f"{sum(map(len, slower.values()))} of the calls are slower: {cases}",
    ]


def decode_step_on_gpu(record: Record) -> list[str]:
    def line(row: Record) -> Line:
        found, least = row["of_the_bandwidth_limit"], LEAST_OF_THE_BANDWIDTH.get(row["batch"])
        missed = least is not None and found < least
        wanted = "" if least is None else f", wanted {least:.2f}{': **does not hold**' if missed else ''}"
        plain, hopper = row["ms"]["plain"], row["ms"]["hopper"]
        words = f"({hopper:.2f} ms, {figure(found)} of the bandwidth limit{wanted})"
        return Line(case=f"batch {row['batch']}", ratio=plain / hopper, setting=words)

    return listed(map(line, record["batches"]))


def invariant_on_gpu(record: Record) -> list[str]:
    def line(row: Record, part: str) -> Line:
        ratio = row[f"{part}_ratio"]
        missed = INVARIANT_TARGET if ratio < INVARIANT_TARGET else None
        return Line(
            case=f"{row['form'].replace('inside', 'a model as it is', 1)},", ratio=ratio, setting=part, missed=missed
        )

    inside = [row for row in record["rows"] if row["form"] != "outside"]
    return [
        f"{record['batch']} sequences of {record['tokens']:,} tokens, forward with the loss, and backward",
        *listed(line(row, part) for row in inside for part in ("forward", "backward")),
    ]


def on_cpu(record: Record) -> list[str]:
    def line(row: Record) -> Line:
        dtype = "" if row["dtype"] == "float32" else f" {row['dtype']}"
        threads = f"({row['threads']} thread{'s' if row['threads'] > 1 else ''})"
        return Line(
            case=f"{row['case']} {sizes(row['shape'])}{dtype}", ratio=row["ratio"], setting=threads, missed=missed(row)
        )

    return listed(map(line, record["rows"]))


def operators_on_cpu(record: Record) -> list[str]:
    def line(row: Record) -> Line:
        case = row["case"].replace(" fb", ", forward and backward,")
        return Line(case=f"{case} {sizes(row['shape'])}", ratio=row["ratio"], missed=missed(row))

    share = record["cross_entropy_memory_share"]
    return [*listed(map(line, record["rows"])), f"cross-entropy takes {figure(share)} of torch's memory"]


def models_on_cpu(record: Record) -> list[str]:
    return listed(
        Line(case=f"{row['case']}, {row['shape']},", ratio=row["ratio"], missed=missed(row)) for row in record["rows"]
    )


def ranks_on_cpu(record: Record) -> list[str]:
    points = []
    for row in record["rows"]:
        if "ratio" in row:
            verdict = "" if row["met"] else ": **does not hold**"
            points.append(
                f"{row['case']}: {figure(row['ratio'])} times the time of stock DistributedDataParallel"
                f" (wanted at most {row['target']:.2f}{verdict})"
            )
        elif "speedup" in row:
            points.append(f"{row['case']}: {figure(row['speedup'])} times as fast as one rank")
    return points


def server_under_load(record: Record) -> list[str]:
    first, last = record["first_token_p50"], record["first_token_p99"]
    return [
        f"{record['clients']} clients for {record['seconds']:.0f} s: {len(record['errors'])} errors,"
        f" {record['requests']:,} requests, {record['tokens_per_second']:,.0f} tokens a second; first token after"
        f" {first:.2f} s in the median, {last:.2f} s at the 99th percentile; {record['mismatched_logprobs']} logprobs"
        f" of {record['probes']} equal requests differ"
    ]


def tracing_on_cpu(record: Record) -> list[str]:
    def words(row: Record) -> str:
        held = "" if row["met"] else f" (wanted {100 * row['allowed']:.0f} %: **does not hold**)"
        shares = f"off {100 * row['share_off']:.2g} %, on {100 * row['share_on']:.1f} %{held}"
        return f"{row['case']}, a step of {row['step_milliseconds']:,.0f} ms with {row['kernels']} kernels: {shares}"

    return [words(row) for row in sorted(record["rows"], key=lambda row: row["met"])]


def merging_on_cpu(record: Record) -> list[str]:
    def line(row: Record) -> Line:
        setting = f"({figure(row['processor_ratio'])} by processor time)"
        return Line(case=row["case"], ratio=row["ratio"], setting=setting, missed=missed(row))

    most = max(record["rows"], key=lambda row: row["megabytes_above_interpreter"])
    used, allowed = most["megabytes_above_interpreter"], most["most_megabytes"]
    verdict = "" if used < allowed else ": **does not hold**"
    return [
        *listed(map(line, record["rows"])),
        f"at most {used:.0f} MB above what the interpreter takes (wanted less than {allowed:.0f}{verdict})",
    ]


WHOLE_MODELS = "tokens a second over those of torch and transformers; of sixteen requests at once over one by one"
PARTS = (
    Part(
        file="h200_matmul.json",
        title="Products and RMSNorm, bfloat16",
        compared="time of torch (cuBLAS) over ours, kernels alone",
        write=matmul_on_gpu,
    ),
    Part(
        file="h200_operators.json",
        title="The other operators, bfloat16",
        compared="time of torch over ours",
        write=operators_on_gpu,
    ),
    Part(
        file="h200_host_launch.json",
        title="Calls one by one, launched in C++, bfloat16",
        compared="time of torch's call over ours, nothing waited for between calls",
        write=calls_on_gpu,
    ),
    Part(file="h200_350m.json", title="Training the 350M, bfloat16", compared="", write=training_on_gpu),
    Part(
        file="h200_decode.json",
        title="Decoding a Llama of 8 billion weights, bfloat16",
        compared="tokens a second over those of transformers with a static cache, compiled with CUDA graphs",
        write=decoding_on_gpu,
    ),
    Part(
        file="h200_decode_step.json",
        title="The same model's decode step alone",
        compared="time of the model's own pass as a CUDA graph over that of the step for Hopper, which has its bits",
        write=decode_step_on_gpu,
    ),
    Part(
        file="h200_decode_attention.json",
        title="Attention of one query a sequence, 32 heads over 8 of 128, bfloat16",
        compared="time of the faster of cuDNN and flash attention over ours",
        write=decode_attention_on_gpu,
    ),
    Part(
        file="h200_invariant.json",
        title="Qwen3 of transformers, 1.7 billion weights, bfloat16, in invariant mode",
        compared="time outside of the mode over time in it",
        write=invariant_on_gpu,
    ),
    Part(
        file="cpu.json",
        title="Products and RMSNorm",
        compared="time of torch (MKL) over ours, float32 if not said",
        write=on_cpu,
    ),
    Part(
        file="cpu_operators.json",
        title="The other operators, float32, two threads",
        compared="time of torch over ours",
        write=operators_on_cpu,
    ),
    Part(file="cpu_model.json", title="Whole models, float32, two threads", compared=WHOLE_MODELS, write=models_on_cpu),
    Part(
        file="arm_cpu.json",
        title="Products and RMSNorm",
        compared="time of torch (Arm's library, whose linear takes both cores where one is asked for) over ours, "
        "float32 if not said",
        write=on_cpu,
    ),
    Part(
        file="arm_cpu_operators.json",
        title="The other operators, float32, two threads",
        compared="time of torch over ours",
        write=operators_on_cpu,
    ),
    Part(
        file="arm_cpu_model.json",
        title="Whole models, float32, two threads",
        compared=WHOLE_MODELS,
        write=models_on_cpu,
    ),
    Part(file="cpu_ranks.json", title="Two ranks, the tiny preset, a thread each", compared="", write=ranks_on_cpu),
    Part(file="server_load.json", title="A server, the tiny preset", compared="", write=server_under_load),
    Part(
        file="trace_overhead.json",
        title="Tracing a training step, float32",
        compared="share of a step by which it is longer while nothing is recorded, and while everything is",
        write=tracing_on_cpu,
    ),
    Part(
        file="post_merge.json",
        title="Merging two models of 135 million weights, bfloat16",
        compared="time of mergekit over ours, whole commands in turn",
        write=merging_on_cpu,
    ),
)


def section(results: Path = RESULTS) -> str:
    """Everything between the two marks."""
    unread = {path.name for path in results.glob("*.json")} - {part.file for part in PARTS} - PICTURES
    if unread:
        raise SystemExit(f"report: no part reads {', '.join(sorted(unread))}; allowed: a Part for each record")
    blocks = [BEGIN]
    for part in PARTS:
        record = json.loads((results / part.file).read_text())
        compared = f" {part.compared[0].upper()}{part.compared[1:]}." if part.compared else ""
        made = f"[record](benchmarks/results/{part.file}) of `{record['script']}`, {record['date']}, {versions(record)}"
        title = f"**{part.title}: {record['machine']}.**{compared} ({made})"
        points = "\n".join(wrapped(f"- {point}", "  ") for point in part.write(record))
        blocks.append(f"{wrapped(title)}\n\n{points}")
    return "\n\n".join([*blocks, END])


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
    return before + text + rest.split(END)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the page is another")
    options = parser.parse_args()
    page = README.read_text()
    wanted = written(page, section())
    if options.check:
        print("README agrees with the records" if page == wanted else "README is not what the records say")
        return 0 if page == wanted else 1
    README.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
