"""Whether a device that was asked for is there: looked at before anything is loaded, trained or written."""

from __future__ import annotations


def check_device(option: str, device: str) -> None:
    """Refuses what is no device, and a CUDA device that this machine does not have."""
    if device == "cpu":
        return
    kind, _, number = device.partition(":")
    if kind != "cuda":
        raise ValueError(f"{option} is {device!r}; allowed: cpu, cuda, cuda:N")
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        raise ValueError(f"{option} is {device!r}, and torch {torch.__version__} sees no CUDA GPU here; allowed: cpu")
    if number and not (number.isdecimal() and int(number) < count):
        raise ValueError(f"{option} is {device!r}; allowed: cpu, cuda, cuda:0 to cuda:{count - 1}")
