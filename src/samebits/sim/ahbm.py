"""The virtual accelerator as a device: which SIP new tensors land on, by `set_device` alone.

Tensors themselves lie in the host's memory: a device made from Python (PrivateUse1) registers, and dies in backward. So
the SIP of a tensor is a note on it."""

from __future__ import annotations

from typing import Final, TypeVar

from torch import Tensor

from samebits.sim.identity import get_world_size
from samebits.sim.rank import current

T = TypeVar("T", bound=Tensor)
_NOTE: Final = "_samebits_sip"
_main = {"device": 0}


def device_count() -> int:
    """SIPs of the run."""
    return get_world_size()


def set_device(index: int) -> None:
    """The SIP on which tensors land that this rank (or the main context) makes from now on."""
    if not 0 <= index < device_count():
        raise ValueError(f"ahbm.set_device: device is {index}; allowed: 0 to {device_count() - 1}")
    rank = current()
    if rank is None:
        _main["device"] = index
    else:
        rank.device = index


def current_device() -> int:
    """0 until `set_device` says otherwise."""
    rank = current()
    return _main["device"] if rank is None else rank.device


def landed(tensor: T) -> T:
    """The same tensor, which was just made: it is on the current SIP."""
    setattr(tensor, _NOTE, current_device())
    return tensor


def device_of(tensor: Tensor) -> int:
    """The SIP on which a tensor landed; ValueError for one of which nobody knows."""
    found = getattr(tensor, _NOTE, None)
    if found is None:
        raise ValueError("ahbm.device_of: the tensor was not made on the virtual accelerator; allowed: ahbm.landed(it)")
    return int(found)
