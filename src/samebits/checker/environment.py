"""What a result was found on: versions, processor, instruction sets, native library, GPU; and what can run here.

Knows no operator. A claim is only as wide as the machine it was shown on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import torch

import samebits
from samebits import native
from samebits.native.sources import source_digest
from samebits.ops._triton.device import missing

# What ARM's own processors are called; they tell a number only.
ARM_PARTS: Final = {"0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd49": "Neoverse-N2", "0xd4f": "Neoverse-V2"}


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def processor() -> str:
    """The processor's own name."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
            if line.startswith("CPU part"):
                part = line.partition(":")[2].strip()
                return ARM_PARTS.get(part, f"ARM part {part}")
    return platform.processor() or platform.machine()


def architecture() -> str:
    """The kind of processor, in one spelling on every system."""
    machine = platform.machine().lower()
    return {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64"}.get(machine, machine)


def gpu() -> str:
    """The CUDA device and its compute capability, or "none"."""
    if not torch.cuda.is_available():
        return "none"
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()} (compute capability {major}.{minor})"


def native_problem() -> str:
    """Why the native library cannot be used, or ""."""
    try:
        native.library()
    except (native.NativeError, OSError) as error:
        return str(error)
    return ""


def unavailable(backend: str, *, component: bool) -> str:
    """Why a backend cannot run here, or "". A user's own function needs only the device, not our kernels."""
    if backend == "cpu":
        return native_problem() if component else ""
    if not component:
        return "" if torch.cuda.is_available() else "a CUDA GPU is needed and none is visible"
    lack = missing()
    return f"backend 'triton' needs {lack}" if lack else ""


def environment() -> dict[str, str]:
    """The facts a report carries."""
    usable = not native_problem()
    return {
        "samebits": samebits.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": installed("triton"),
        "processor": processor(),
        "threads": str(torch.get_num_threads()),
        "instruction sets": " ".join(native.instruction_sets()) if usable else "unknown",
        "native library": (source_digest() or "installed without sources")[:12] if usable else "not usable",
        "gpu": gpu(),
    }
