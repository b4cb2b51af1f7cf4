"""What others have measured and published: bus bandwidths of NCCL, training throughputs. Data only, with its sources.

Each table says where it is from. Rows that presets were calibrated on are named by `validate`; it predicts the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20
GIB: Final = 1 << 30
Curve = tuple[tuple[int, float], ...]
"""(bytes, microseconds) of an all-reduce, out of place, as nccl-tests prints them."""

# github.com/NVIDIA/nccl-tests/issues/290: 8 x H100 80GB HBM3, one process, in-switch reduction.
H100_8: Final[Curve] = (
    (128 * MIB, 613.3),
    (256 * MIB, 1139.2),
    (512 * MIB, 2175.8),
    (GIB, 4038.8),
    (2 * GIB, 8020.3),
    (4 * GIB, 15870.0),
)
# A page on NVLink bandwidth of 2024 with all_reduce_perf on 8 x A100-SXM4-80GB: by mpirun, a process for each GPU.
A100_8: Final[Curve] = (
    (1 << 10, 24.43),
    (4 << 10, 25.29),
    (16 << 10, 26.15),
    (64 << 10, 31.82),
    (256 << 10, 27.65),
    (512 << 10, 28.11),
    (MIB, 37.89),
    (2 * MIB, 55.39),
    (4 * MIB, 81.66),
    (8 * MIB, 130.6),
    (16 * MIB, 213.3),
    (32 * MIB, 377.6),
    (64 * MIB, 615.7),
    (128 * MIB, 1181.6),
    (256 * MIB, 2218.2),
    (512 * MIB, 4248.8),
    (GIB, 8244.5),
    (2 * GIB, 16288.0),
    (4 * GIB, 32285.0),
)
# The same machine, one process for all GPUs.
A100_8_ONE_PROCESS: Final[Curve] = (
    (1 << 10, 42.05),
    (16 << 10, 39.47),
    (256 << 10, 43.97),
    (MIB, 52.61),
    (2 * MIB, 59.30),
    (4 * MIB, 103.8),
    (8 * MIB, 162.6),
    (16 * MIB, 260.5),
    (32 * MIB, 439.2),
    (64 * MIB, 695.5),
    (128 * MIB, 1305.0),
    (256 * MIB, 2392.6),
    (512 * MIB, 4627.5),
    (GIB, 8247.6),
    (2 * GIB, 16330.0),
    (4 * GIB, 32336.0),
)
# Another machine: nccl-tests 2.19.4 on 8 x A100-SXM4-80GB, one process.
A100_8_OTHER: Final[Curve] = (
    (1 << 10, 36.57),
    (16 << 10, 36.47),
    (256 << 10, 46.38),
    (MIB, 67.31),
    (2 * MIB, 81.12),
    (4 * MIB, 106.56),
    (8 * MIB, 161.65),
    (16 * MIB, 273.12),
    (32 * MIB, 431.40),
    (64 * MIB, 671.74),
    (128 * MIB, 1295.41),
)
# dstack.ai/docs, Nebius: 2 nodes of 8 x H100, InfiniBand of 400 Gbit/s a GPU.
H100_16: Final[Curve] = (
    (64 * MIB, 472.43),
    (128 * MIB, 759.58),
    (256 * MIB, 1305.66),
    (512 * MIB, 2379.38),
    (GIB, 4511.97),
    (2 * GIB, 8776.26),
    (4 * GIB, 17407.8),
    (8 * GIB, 34448.4),
)
# A tutorial of 2026 on 2 nodes of 8 x H200 with RoCE of 400 Gbit/s a GPU, NCCL 2.30.4.
H200_16: Final[Curve] = (
    (64 * MIB, 461.01),
    (128 * MIB, 742.13),
    (256 * MIB, 1275.21),
    (512 * MIB, 2327.12),
    (GIB, 4388.55),
    (2 * GIB, 8497.37),
    (4 * GIB, 16715.2),
    (8 * GIB, 33169.3),
)
# github.com/NVIDIA/nccl-tests/issues/212: rings on 8 x H100 reach 370 GB/s. One vendor: PCIe H100 reach 35 to 45 GB/s.
H100_RING_PLATEAU: Final = 370e9
PCIE_PLATEAU: Final = (35e9, 45e9)
PCIE5_BYTES_PER_S: Final = 63e9
# Of the seed's system: seconds of an all-reduce of 96 KB a PE over 6 SIPs, with the corner and the centre cube as root.
SEED_ALL_REDUCE: Final = {"corner": 22.0e-6, "centre": 17.2e-6}


@dataclass(frozen=True, slots=True)
class Run:
    """A training run: MPT of MosaicML's llm-foundry, all weights sharded."""

    model: str
    length: int
    gpus: int
    micro_batch: int
    accumulation: int
    tokens_per_gpu: float
    """A second."""
    recompute: bool
    pure: bool = False
    """Gradients in 16 bits too."""


# benchmarks/results/h200_350m.json: our own trainer, recipes/350m_short.yaml on one H200, tokens a second.
OWN_350M: Final = 101509.0
SIZES: Final = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}
"""Hidden size, layers, heads; the feed-forward part is four times as wide, the vocabulary has 50,368 words."""
VOCABULARY: Final = 50368


def _runs(text: str) -> tuple[Run, ...]:
    """Lines of: model length gpus micro_batch accumulation tokens/s/GPU, then c where activations are recomputed and p
    where all is 16 bits."""
    found = []
    for line in text.strip().splitlines():
        model, length, gpus, micro, steps, rate, *marks = line.split()
        found.append(
            Run(model, int(length), int(gpus), int(micro), int(steps), float(rate), "c" in marks, "p" in marks)
        )
    return tuple(found)


# github.com/mosaicml/llm-foundry, scripts/train/benchmarking/README.md: H100 80GB BF16.
H100_RUNS: Final = _runs("""
70b 2048 64 8 4 1039 c
70b 2048 32 2 16 882 c
30b 8192 8 1 21 1384 c
30b 4096 8 1 21 1802 c
30b 2048 32 14 3 2308 c
30b 2048 16 10 3 2263 c
30b 2048 8 3 21 2002 c
30b 1024 8 6 21 2084 c
13b 32768 8 1 3 1976 c
13b 16384 8 3 3 2985 c
13b 4096 8 10 3 4717 c
13b 2048 64 2 1 4800
13b 2048 32 2 1 4811
13b 2048 16 2 1 4767
13b 2048 8 2 1 4792
13b 1024 8 40 3 5502 c
7b 65536 8 1 2 1956 c
7b 32768 8 2 2 3318 c
7b 8192 8 8 2 6935 c
7b 4096 8 16 2 8611 c
7b 2048 8 6 1 10643
7b 1024 8 64 2 10203 c
3b 32768 8 3 6 5873 c
3b 16384 8 1 6 11152
3b 8192 8 3 6 16578
3b 4096 8 5 6 20964
3b 2048 64 6 3 22525
3b 2048 32 6 3 23021
3b 2048 16 10 3 24142
3b 1024 8 20 6 27046
3b 512 8 40 6 27965
1b 32768 8 1 4 12025
1b 16384 8 2 4 19649
1b 8192 8 3 4 29157
1b 4096 8 7 4 38535
1b 2048 64 20 1 44402
1b 2048 32 20 1 45130
1b 2048 16 20 1 46037
1b 2048 8 14 1 45455
1b 1024 8 18 4 48910
1b 512 8 56 4 52275
760m 8192 8 6 2 41825
760m 2048 32 24 1 67971
760m 2048 16 24 1 68551
760m 512 8 96 2 83749
""")
# The same page: A100 80GB, 1,600 Gbit/s a node.
A100_RUNS: Final = _runs("""
70b 2048 64 8 4 410 c p
70b 2048 32 2 16 373 c p
30b 8192 8 1 21 574 c
30b 4096 8 1 21 814 c
30b 2048 8 3 21 916 c
30b 1024 8 6 21 946 c
30b 512 8 12 21 967 c
13b 32768 8 1 3 1016 c
13b 8192 8 5 3 1795 c
13b 4096 8 10 3 2060 c
13b 2048 8 2 3 2262
13b 1024 8 40 3 2330 c
7b 32768 8 2 2 1672 c
7b 16384 8 4 2 2453 c
7b 8192 8 8 2 3206 c
7b 4096 8 16 2 3684 c
7b 2048 8 6 2 4641
7b 1024 8 64 2 4357 c
3b 32768 8 3 6 3029 c
3b 16384 8 1 6 5529
3b 8192 8 3 6 7695
3b 4096 8 5 6 9457
3b 2048 8 10 2 10811
3b 1024 8 20 6 11580
3b 512 8 40 6 12127
1b 32768 8 1 4 6275
1b 16384 8 2 4 9956
1b 8192 8 3 4 13814
1b 4096 8 7 4 17807
1b 2048 8 14 4 20513
1b 1024 8 18 4 22112
1b 512 8 56 4 23148
760m 8192 8 6 2 20933
760m 2048 8 24 2 32434
350m 8192 8 8 2 36569
350m 2048 8 32 2 58782
350m 512 8 128 2 69330
125m 8192 8 8 2 90392
125m 2048 8 32 2 141737
125m 512 8 128 2 165681
""")
# The same page: A100 40GB, 1,600 Gbit/s a node.
A100_40_RUNS: Final = _runs("""
70b 2048 128 4 1 376 c p
30b 2048 128 6 1 865 c p
30b 2048 32 4 1 857 c p
13b 2048 128 16 1 1972 c p
13b 2048 64 16 1 1976 c p
13b 2048 32 14 1 1998 c p
13b 2048 16 10 1 1993 c p
7b 2048 128 18 1 3623 c p
7b 2048 64 18 1 3665 c p
7b 2048 32 18 1 3725 c p
7b 2048 16 16 1 3645 c p
7b 2048 8 12 4 3679 c p
3b 2048 128 6 1 9538 p
""")
