"""What is said of each record in benchmarks/results: its title, what is divided by what, and every ratio.

Those of a GPU are in report_gpu.py."""

from __future__ import annotations

from report_gpu import GPU_PARTS
from report_lines import Line, Part, Point, Record, figure, listed, missed


def sizes(shape: list[int]) -> str:
    return "x".join(map(str, shape))


def on_cpu(record: Record) -> list[Point]:
    def line(row: Record) -> Line:
        dtype = "" if row["dtype"] == "float32" else f" {row['dtype']}"
        threads = f"({row['threads']} thread{'s' if row['threads'] > 1 else ''})"
        return Line(
            case=f"{row['case']} {sizes(row['shape'])}{dtype}", ratio=row["ratio"], setting=threads, missed=missed(row)
        )

    return [listed(map(line, record["rows"]))]


def operators_on_cpu(record: Record) -> list[Point]:
    def line(row: Record) -> Line:
        case = row["case"].replace(" fb", ", forward and backward,")
        return Line(case=f"{case} {sizes(row['shape'])}", ratio=row["ratio"], missed=missed(row))

    share = record["cross_entropy_memory_share"]
    return [listed(map(line, record["rows"])), f"cross-entropy takes {figure(share)} of torch's memory"]


def models_on_cpu(record: Record) -> list[Point]:
    return [
        listed(
            Line(case=f"{row['case']}, {row['shape']},", ratio=row["ratio"], missed=missed(row))
            for row in record["rows"]
        )
    ]


def ranks_on_cpu(record: Record) -> list[Point]:
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


def server_under_load(record: Record) -> list[Point]:
    first, last = record["first_token_p50"], record["first_token_p99"]
    return [
        f"{record['clients']} clients for {record['seconds']:.0f} s: {len(record['errors'])} errors,"
        f" {record['requests']:,} requests, {record['tokens_per_second']:,.0f} tokens a second; first token after"
        f" {first:.2f} s in the median, {last:.2f} s at the 99th percentile; {record['mismatched_logprobs']} logprobs"
        f" of {record['probes']} equal requests differ"
    ]


def tracing_on_cpu(record: Record) -> list[Point]:
    def words(row: Record) -> str:
        held = "" if row["met"] else f" (wanted {100 * row['allowed']:.0f} %: **does not hold**)"
        shares = f"off {100 * row['share_off']:.2g} %, on {100 * row['share_on']:.1f} %{held}"
        return f"{row['case']}, a step of {row['step_milliseconds']:,.0f} ms with {row['kernels']} kernels: {shares}"

    return [words(row) for row in sorted(record["rows"], key=lambda row: row["met"])]


def merging_on_cpu(record: Record) -> list[Point]:
    def line(row: Record) -> Line:
        setting = f"({figure(row['processor_ratio'])} by processor time)"
        return Line(case=row["case"], ratio=row["ratio"], setting=setting, missed=missed(row))

    most = max(record["rows"], key=lambda row: row["megabytes_above_interpreter"])
    used, allowed = most["megabytes_above_interpreter"], most["most_megabytes"]
    verdict = "" if used < allowed else ": **does not hold**"
    return [
        listed(map(line, record["rows"])),
        f"at most {used:.0f} MB above what the interpreter takes (wanted less than {allowed:.0f}{verdict})",
    ]


WHOLE_MODELS = "tokens a second over those of torch and transformers; of sixteen requests at once over one by one"
PARTS = (
    *GPU_PARTS,
    Part(
        file="cpu.json",
        title="Products and RMSNorm",
        compared="time of torch (MKL) over ours, float32 if not said",
        rival="beside torch (MKL)",
        write=on_cpu,
    ),
    Part(
        file="cpu_operators.json",
        title="The other operators, float32, two threads",
        compared="time of torch over ours",
        rival="beside torch",
        write=operators_on_cpu,
    ),
    Part(
        file="cpu_model.json",
        title="Whole models, float32, two threads",
        compared=WHOLE_MODELS,
        rival="beside torch and transformers",
        write=models_on_cpu,
    ),
    Part(
        file="arm_cpu.json",
        title="Products and RMSNorm",
        compared="time of torch (Arm's library, whose linear takes both cores where one is asked for) over ours, "
        "float32 if not said",
        rival="beside torch (Arm's library)",
        write=on_cpu,
    ),
    Part(
        file="arm_cpu_operators.json",
        title="The other operators, float32, two threads",
        compared="time of torch over ours",
        rival="beside torch",
        write=operators_on_cpu,
    ),
    Part(
        file="arm_cpu_model.json",
        title="Whole models, float32, two threads",
        compared=WHOLE_MODELS,
        rival="beside torch and transformers",
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
        rival="beside mergekit",
        write=merging_on_cpu,
    ),
)
