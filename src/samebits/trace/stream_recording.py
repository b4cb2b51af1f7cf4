"""A list of what a program did on which stream, for the rule of `streams`: kernels, host reads, events and waits.

Operations come from torch's dispatcher, events and waits from the trace that torch itself keeps of CUDA. What the
library reads of pinned memory by itself, after a copy that nobody waited for, is not seen here. Knows no kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.cuda._gpu_trace as gpu_trace
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from samebits.trace.streams import Done, EventAwaited, EventRecorded, HostRead, HostWait, Launch
from samebits.trace.transfers import caller

_aten = torch.ops.aten
_READS: Final = (_aten._local_scalar_dense.default, _aten.is_nonzero.default)
StreamOf = Callable[[str], int]
""" "kernel" or "read" to the number of the stream that it is given to."""


def current_stream(_: str) -> int:
    """torch's own, for kernels and reads alike."""
    return int(torch.cuda.current_stream().cuda_stream)


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, log: list[Done], stream_of: StreamOf, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._log, self._stream_of, self._device = log, stream_of, device

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        given = self._memory((args, kwargs or {}))
        made = self._memory(result)
        to_host = isinstance(result, Tensor) and result.device.type == "cpu" and self._device != "cpu"
        if given and (function in _READS or to_host):
            for memory in sorted(given):
                self._log.append(HostRead(stream=self._stream_of("read"), memory=memory, where=caller()))
        elif (given or made) and not function.is_view:
            writes = made - given | self._memory(_written(function, args, kwargs or {}))
            launch = Launch(
                stream=self._stream_of("kernel"),
                kernel=function._schema.name.partition("::")[2],
                reads=frozenset(given),
                writes=frozenset(writes),
                where=caller(),
            )
            self._log.append(launch)
        return result

    def _memory(self, tree: Any) -> set[int]:
        tensors = [each for each in tree_leaves(tree) if isinstance(each, Tensor)]
        return {each.untyped_storage().data_ptr() for each in tensors if each.device.type == self._device} - {0}


def _written(function: Any, args: Any, kwargs: Any) -> list[Any]:
    named = list(zip(function._schema.arguments, args, strict=False))
    named += [(each, kwargs[each.name]) for each in function._schema.arguments[len(args) :] if each.name in kwargs]
    return [value for each, value in named if each.alias_info is not None and each.alias_info.is_write]


@contextmanager
def recorded_streams(*, stream_of: StreamOf = current_stream, device: str = "cuda") -> Iterator[list[Done]]:
    """Within the block everything that this thread does with tensors of a device is put on the list.

    `stream_of` with another device: a plan, in which a program that ran there is judged as though on these streams."""
    log: list[Done] = []
    callbacks: list[tuple[Any, Callable[..., None]]] = [
        (gpu_trace.EventRecordCallbacks, lambda event, stream: log.append(EventRecorded(event=event, stream=stream))),
        (gpu_trace.EventWaitCallbacks, lambda event, stream: log.append(EventAwaited(event=event, stream=stream))),
        (gpu_trace.EventSynchronizationCallbacks, lambda event: log.append(EventAwaited(event=event, stream=None))),
        (gpu_trace.StreamSynchronizationCallbacks, lambda stream: log.append(HostWait(stream=stream))),
        (gpu_trace.DeviceSynchronizationCallbacks, lambda: log.append(HostWait(stream=None))),
    ]
    if device == "cuda":
        torch._C._activate_gpu_trace()
    for registry, callback in callbacks:
        registry.add_callback(callback)
    try:
        with _Recording(log, stream_of, device):
            yield log
    finally:
        for registry, callback in callbacks:
            registry.callback_list.remove(callback)
