"""What a process owns and threads share, given to each rank as its own while ranks run: torch.distributed's state, the
way ranks find each other, and os.environ.

Everything is put in when the first run of the process starts and taken out when it ends. Outside of ranks nothing
looks different. Still shared, as threads share it: modules and their globals, the default dtype, the number of threads,
sys.argv, the working folder; and what C code reads of the environment."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any, Final

import torch
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from samebits.sim.rank import Rank, current

BACKEND: Final = "sim"
# Backends whose place the virtual cluster takes, so that unmodified programs run on it.
TAKEN_OVER: Final = ("gloo", "nccl", "undefined", "cpu:gloo", "cpu:gloo,cuda:nccl")
_SCHEMES: Final = ("env", "tcp", "file")


def fresh_world() -> Any:
    """A state of torch.distributed as a new process has it.

    torch keeps most of it in globals of its module, behind properties of one class. Here the same properties read
    globals of their own: whatever fields a release has, each rank gets all of them."""
    kind = type(distributed_c10d._world) if not isinstance(distributed_c10d._world, Worlds) else Worlds.kind
    own = dict(vars(distributed_c10d))
    members = dict(vars(kind))
    for name, member in members.items():
        if isinstance(member, property):
            functions = [_elsewhere(each, own) for each in (member.fget, member.fset)]
            members[name] = property(*functions)
    members = {name: member for name, member in members.items() if name not in ("__dict__", "__weakref__")}
    return type("RankWorld", (), members)()


def _elsewhere(function: Callable[..., Any] | None, own: dict[str, Any]) -> Any:
    """The same function on globals of its own, where those hold nothing yet."""
    if function is None:
        return None
    for name in function.__code__.co_names:
        if isinstance(own.get(name), dict | list | int):
            own[name] = type(own[name])()
    return types.FunctionType(function.__code__, own, function.__name__, function.__defaults__, function.__closure__)


class Worlds:
    """Stands in for torch.distributed's one state: each rank sees its own, the main context the one that was there."""

    kind: type = type(distributed_c10d._world)

    def __init__(self, main: Any) -> None:
        object.__setattr__(self, "_main", main)

    def _own(self) -> Any:
        rank = current()
        return object.__getattribute__(self, "_main") if rank is None else rank.world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own(), name, value)


_Environ: Final[type] = type(os.environ)


class RankEnviron(_Environ):  # type: ignore[misc]
    """os.environ with the variables that a rank has set, or was given, in front of the process's."""

    def __getitem__(self, key: str) -> str:
        rank = current()
        if rank is None or key not in rank.environment:
            return str(super().__getitem__(key))
        value = rank.environment[key]
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: str) -> None:
        rank = current()
        if rank is None:
            super().__setitem__(key, value)
            return
        if not isinstance(value, str):
            raise TypeError(f"str expected, not {type(value).__name__}")
        rank.environment[key] = value

    def __delitem__(self, key: str) -> None:
        rank = current()
        if rank is None:
            super().__delitem__(key)
            return
        self[key]
        rank.environment[key] = None

    def __iter__(self) -> Iterator[str]:
        rank = current()
        if rank is None:
            return iter(list(super().__iter__()))
        outer = [name for name in super().__iter__() if name not in rank.environment]
        return iter([*outer, *(name for name, value in rank.environment.items() if value is not None)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def copy(self) -> dict[str, str]:
        return dict(self)


def _meets(url: str, *, fallback: Callable[..., Any], **options: Any) -> Iterator[tuple[Any, int, int]]:
    """The rendezvous of a rank: the cluster's own store, whatever address the program names."""
    rank = current()
    if rank is None:
        yield from fallback(url, **options)
        return
    yield rank.cluster.store, rank.number, len(rank.scheduler.ranks)


def _takes_over(helper: Callable[..., Any]) -> Callable[..., Any]:
    """torch's maker of process groups, which inside a rank makes a simulated one where gloo or NCCL is asked for."""
    order = signature(helper)

    def made(*args: Any, **kwargs: Any) -> Any:
        if current() is None:
            return helper(*args, **kwargs)
        call = order.bind(*args, **kwargs)
        if str(call.arguments["backend"]).lower() in TAKEN_OVER:
            call.arguments["backend"] = distributed_c10d.Backend(BACKEND)
        if "device_id" in order.parameters:
            # The virtual devices are none of torch's.
            call.arguments["device_id"] = None
        return helper(*call.args, **call.kwargs)

    return made


@contextmanager
def _replaced(place: MutableMapping[str, Any], name: str, value: Any) -> Iterator[None]:
    before = place[name]
    place[name] = value
    try:
        yield
    finally:
        place[name] = before


@contextmanager
def isolated() -> Iterator[None]:
    """Ranks may run in here. Not twice at once: one run of a process has the process to itself."""
    if isinstance(distributed_c10d._world, Worlds):
        raise RuntimeError("a run of the virtual cluster is under way in this process already; one at a time")
    module = vars(distributed_c10d)
    threads = torch.get_num_threads()
    with ExitStack() as scope:
        Worlds.kind = type(distributed_c10d._world)
        scope.enter_context(_replaced(module, "_world", Worlds(distributed_c10d._world)))
        scope.enter_context(
            _replaced(module, "_new_process_group_helper", _takes_over(distributed_c10d._new_process_group_helper))
        )
        handlers = rendezvous.__globals__["_rendezvous_handlers"]
        for scheme in _SCHEMES:
            known = handlers[scheme]

            def meets(url: str, known: Callable[..., Any] = known, **options: Any) -> Any:
                return _meets(url, fallback=known, **options)

            scope.enter_context(_replaced(handlers, scheme, meets))
        # torch puts the rank in front of every uncaught exception, once for each group that was ever made.
        scope.callback(setattr, sys, "excepthook", sys.excepthook)
        os.environ.__class__ = RankEnviron
        scope.callback(setattr, os.environ, "__class__", _Environ)
        # A switch of the whole process: with it every thread has a registry of groups of its own.
        isolate: Callable[[bool], None] = vars(torch._C._distributed_c10d)["_set_thread_isolation_mode"]
        isolate(True)
        scope.callback(isolate, False)
        torch.set_num_threads(1)
        scope.callback(torch.set_num_threads, threads)
        # A process starts with oneDNN on. Where that fails once (a bfloat16 product on some ARM CPUs), torch goes on
        # without it to the end of the process, and its float32 products have other bits from then on.
        scope.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(True)
        yield


def enter_rank(scope: ExitStack, rank: Rank) -> None:
    """The part of it that belongs to a thread: called by each rank's own."""
    rank.world = fresh_world()
    scope.enter_context(torch.autograd.set_multithreading_enabled(False))
