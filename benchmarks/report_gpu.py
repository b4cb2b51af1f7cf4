"""What is said of the records of a GPU: title, what is divided by what, and every ratio."""

from __future__ import annotations

import re

from report_lines import Line, Part, Point, Record, figure, listed, missed

INVARIANT_TARGET = 0.9
LEAST_OF_THE_BANDWIDTH = {1: 0.85}
"""By requests at once, the share of the bandwidth limit that a decode step is to reach."""


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

    return [
        f"wanted of the mean of linear: {record['least_mean']:.2f}",
        listed((line(*each) for each in record["operators"].items()), "means by operator"),
        listed(
            (
                Line(case=f"{row['operator']} of {row['model']} {row['shape']}", ratio=row["ratio"])
                for row in record["rows"]
            ),
            "each",
        ),
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


def training_steps_on_gpu(record: Record) -> list[Point]:
    def line(row: Record) -> Line:
        ours, alone = row["captured"]["milliseconds"], row["one by one"]["milliseconds"]
        words = f"({ours:.0f} ms and without graphs {alone:.0f})"
        return Line(case=f"{row['case']} {row['shape']}", ratio=row["ratio"], setting=words, missed=missed(row))

    return [listed(map(line, record["rows"]))]


def long_rows_on_gpu(record: Record) -> list[Point]:
    """The kernel in use; the record has others beside it that are not."""

    def line(row: Record) -> Line:
        words = f"({figure(row['quickest_ratio'])} by the quickest kernel that is not in use)"
        return Line(case=row["case"], ratio=row["ratio"], setting=words, missed=missed(row))

    return [listed(map(line, record["rows"]))]


def attention_on_gpu(record: Record) -> list[Point]:
    def line(row: Record) -> Line:
        mask = "causal" if row["causal"] else "no mask"
        heads = (
            f"{row['heads']} heads over {row['key_heads']}"
            if row["heads"] != row["key_heads"]
            else f"{row['heads']} heads"
        )
        case = f"{row['pass']}, {heads} of {row['head']}, {row['sequences']} x {row['tokens']} tokens, {mask}"
        return Line(case=case, ratio=row["ratio"], missed=missed(row))

    return [listed(map(line, record["rows"]))]


def rows_on_gpu(record: Record) -> list[Point]:
    def line(row: Record) -> Line:
        words = f"({row['us']:.0f} us and {figure(row['quickest_ratio'])} by the quickest launch)"
        return Line(case=row["case"], ratio=row["ratio"], setting=words, missed=missed(row))

    return [
        f"a large copy reads and writes {record['copy_bandwidth'] / 1e12:.2f} TB/s; all targets together:"
        f" {record['verdict']}",
        listed(map(line, record["rows"])),
    ]


GPU_PARTS = (
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
        file="h200_attention.json",
        title="Attention of whole sequences, bfloat16",
        compared="time of cuDNN over ours, whole passes with all that they launch",
        rival="beside cuDNN",
        write=attention_on_gpu,
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
        file="h200_training_step_350m.json",
        title="An update of the 350M, bfloat16",
        compared="time of transformers' model by torch.compile over ours",
        rival="beside torch.compile",
        write=training_steps_on_gpu,
    ),
    Part(
        file="h200_training_step_1.7b.json",
        title="An update of Qwen3 with 1.7 billion weights, bfloat16",
        compared="time of transformers' model by torch.compile over ours",
        rival="beside torch.compile",
        write=training_steps_on_gpu,
    ),
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
        file="h200_long_rows.json",
        title="Softmax over vocabularies, bfloat16",
        compared="time of torch over ours",
        rival="beside torch",
        write=long_rows_on_gpu,
    ),
    Part(
        file="h200_rows.json",
        title="Row-wise and elementwise kernels alone, bfloat16",
        compared="bytes that must be read and written over time, over the same of a large copy",
        rival="beside a copy",
        write=rows_on_gpu,
    ),
)
