"""What is said of each record in benchmarks/results: its title, what is divided by what, and every ratio.

Those below 1 and those that miss their target stand before all others."""

from __future__ import annotations

import re

from report_lines import SAME, Line, Part, Point, Record, figure, listed, missed

INVARIANT_TARGET = 0.9
LEAST_OF_THE_BANDWIDTH = {1: 0.85}
"""By requests at once, the share of the bandwidth limit that a decode step is to reach."""


def sizes(shape: list[int]) -> str:
    return "x".join(map(str, shape))


def matmul_on_gpu(record: Record) -> list[Point]:
    rows = [*record["matmul"], *record["gradients"], *record["rmsnorm"]]
    return [
        f"geometric mean of {len(record['matmul'])} products {figure(record['geometric_mean'])}, lowest"
        f" {figure(record['lowest'])}; targets {record['bounds']['geometric_mean']:.2f} and"
        f" {record['bounds']['forward']:.2f}: {record['verdict']}",
        listed((Line(case=product(row["name"]), ratio=row["ratio"]) for row in rows), "kernels alone"),
        listed((Line(case=product(row["name"]), ratio=row["call_ratio"]) for row in rows), "called by Python"),
    ]


def product(name: str) -> str:
    """`linear (1, 4096, 4096)` as `linear 1x4096x4096`."""
    return re.sub(r"\((\d+(?:, \d+)+)\)", lambda found: found[1].replace(", ", "x"), name)


def operators_on_gpu(record: Record) -> list[Point]:
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
        listed(map(line, record["operators"])),
    ]


def training_on_gpu(record: Record) -> list[Point]:
    return [
        f"{record['steps']} updates of {record['tokens_per_step']:,} tokens, {record['parameters']:,} weights:"
        f" {record['median_tokens_per_second']:,} tokens a second, {100 * record['median_mfu']:.0f} % of what our own"
        f" product reaches there; loss {record['first_loss']:.2f} to {record['last_loss']:.2f}; no contract broken"
    ]


def decoding_on_gpu(record: Record) -> list[Point]:
    def line(row: Record) -> Line:
        words = (
            f"({row['ours_tokens_per_second']:,.0f} tokens a second,"
            f" {figure(row['of_the_bandwidth_limit'])} of the bandwidth limit)"
        )
        return Line(case=f"batch {row['batch']}", ratio=row["ratio"], setting=words)

    return [listed(map(line, record["lines"]))]


def decode_attention_on_gpu(record: Record) -> list[Point]:
    """The kernel in use; the record has one beside it that is not."""
    return [listed(Line(case=row["case"], ratio=row["ratio"], missed=missed(row)) for row in record["rows"])]


def calls_on_gpu(record: Record) -> list[Point]:
    def line(name: str, told: Record) -> Line:
        target = record["least_mean"] if name == "linear" else None
        found = {"ratio": told["mean_ratio"], "target": target}
        words = f"(launched by Python {figure(told['mean_python_ratio'])})"
        return Line(case=name, ratio=found["ratio"], setting=words, missed=missed(found))

    slower: dict[tuple[str, str], list[str]] = {}
    for row in record["rows"]:
        if row["ratio"] < SAME:
            slower.setdefault((row["operator"], row["model"]), []).append(f"{row['shape']} {figure(row['ratio'])}")
    cases = "; ".join(f"{name} of {model} {', '.join(rows)}" for (name, model), rows in slower.items())
    return [
        f"means of {len(record['rows'])} calls by operator, wanted of linear {record['least_mean']:.2f}",
        listed(line(*each) for each in record["operators"].items()),
        f"{sum(map(len, slower.values()))} of the calls are slower: {cases}",
    ]


def decode_step_on_gpu(record: Record) -> list[Point]:
    def line(row: Record) -> Line:
        least, found = LEAST_OF_THE_BANDWIDTH.get(row["batch"], 0.0), row["of_the_bandwidth_limit"]
        plain, hopper = row["ms"]["plain"], row["ms"]["hopper"]
        words = f"({hopper:.2f} ms, {figure(found)} of the bandwidth limit)"
        behind = least if found < least else None
        return Line(case=f"batch {row['batch']}", ratio=plain / hopper, setting=words, missed=behind)

    wanted = (f"{least:.2f} at batch {batch}" for batch, least in LEAST_OF_THE_BANDWIDTH.items())
    return [f"wanted of the bandwidth limit: {', '.join(wanted)}", listed(map(line, record["batches"]))]


def invariant_on_gpu(record: Record) -> list[Point]:
    def line(row: Record, part: str) -> Line:
        ratio = row[f"{part}_ratio"]
        missed = INVARIANT_TARGET if ratio < INVARIANT_TARGET else None
        return Line(
            case=f"{row['form'].replace('inside', 'a model as it is', 1)},", ratio=ratio, setting=part, missed=missed
        )

    inside = [row for row in record["rows"] if row["form"] != "outside"]
    return [
        f"{record['batch']} sequences of {record['tokens']:,} tokens, forward with the loss, and backward",
        listed(line(row, part) for row in inside for part in ("forward", "backward")),
    ]


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
    Part(
        file="h200_matmul.json",
        title="Products and RMSNorm, bfloat16",
        compared="time of torch (cuBLAS) over ours",
        rival="beside torch (cuBLAS)",
        write=matmul_on_gpu,
    ),
    Part(
        file="h200_operators.json",
        title="The other operators, bfloat16",
        compared="time of torch over ours",
        rival="beside torch",
        write=operators_on_gpu,
    ),
    Part(
        file="h200_host_launch.json",
        title="Calls one by one, launched in C++, bfloat16",
        compared="time of torch's call over ours, nothing waited for between calls",
        rival="beside torch",
        write=calls_on_gpu,
    ),
    Part(file="h200_350m.json", title="Training the 350M, bfloat16", compared="", write=training_on_gpu),
    Part(
        file="h200_decode.json",
        title="Decoding a Llama of 8 billion weights, bfloat16",
        compared="tokens a second over those of transformers with a static cache, compiled with CUDA graphs",
        rival="beside transformers compiled with CUDA graphs",
        write=decoding_on_gpu,
    ),
    Part(
        file="h200_decode_step.json",
        title="The same model's decode step alone",
        compared="time of the model's own pass as a CUDA graph over that of the step for Hopper, which has its bits",
        rival="beside the pass as it was",
        write=decode_step_on_gpu,
    ),
    Part(
        file="h200_decode_attention.json",
        title="Attention of one query a sequence, 32 heads over 8 of 128, bfloat16",
        compared="time of the faster of cuDNN and flash attention over ours",
        rival="beside the faster of cuDNN and flash",
        write=decode_attention_on_gpu,
    ),
    Part(
        file="h200_invariant.json",
        title="Qwen3 of transformers, 1.7 billion weights, bfloat16, in invariant mode",
        compared="time outside of the mode over time in it",
        rival="beside the same model outside of it",
        write=invariant_on_gpu,
    ),
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
