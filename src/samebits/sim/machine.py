"""The virtual accelerator at work: launches kernels on PEs, moves their messages, and advances simulated time.

A launch starts all its PEs at one instant: the moment at which the farthest of them has heard of it along the chain of
dispatch, from the host to the SIP's root cube, from cube to cube, from cube to PE."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from samebits.sim.events import Engine
from samebits.sim.ipcq import Queues
from samebits.sim.ipcq_faults import FaultPlan
from samebits.sim.kernels import Compute, Context, IpcqDeadlock, Kernel, Launch, Program, Receive, Send, Waiting
from samebits.sim.queue_pairs import Neighbours, Payload, QueueSettings
from samebits.sim.schedule import LinkClass
from samebits.sim.topology import PE, Topology
from samebits.sim.wires import Wires


@dataclass(frozen=True, slots=True)
class Span:
    """Something a PE did, for the timeline."""

    place: PE
    what: str
    start: float
    stop: float


class Machine:
    """One virtual accelerator: its topology, its clock, its queues and its programs."""

    def __init__(
        self,
        topology: Topology,
        settings: QueueSettings | None = None,
        *,
        faults: FaultPlan | None = None,
        seed: int | None = None,
        queues: type[Queues] = Queues,
        host_latency: float = 0.0,
    ) -> None:
        self.topology, self.host_latency = topology, host_latency
        self.engine, self.wires = Engine(seed), Wires(topology)
        self.faults = faults or FaultPlan()
        self.queues = queues(self.engine, self.wires, settings or QueueSettings(), self.faults, seed=seed)
        self.spans: list[Span] = []
        self._live: list[Program] = []
        self._failed = ""
        """The launch that ended badly. What it left under way would reach the next one."""

    @property
    def now(self) -> float:
        return self.engine.now

    def dispatch_latency(self, place: PE) -> float:
        """How long a word from the host takes to a PE."""
        cubes = self.topology.route(PE(place.sip, self.topology.root_cube, 0), PE(place.sip, place.cube, place.pe))
        to_cube = sum(self.topology.links[hop.level].alpha for hop in cubes if hop.level is LinkClass.CUBE)
        return self.host_latency + to_cube + self.topology.links[LinkClass.PE].alpha

    def install(self, table: Neighbours) -> None:
        """Neighbours and ring bases of PEs, as messages along the chain of dispatch; done when this returns."""
        self.queues.install(table, self.dispatch_latency)
        self.engine.run()

    def launch(
        self,
        kernel: Kernel,
        places: Sequence[PE],
        arguments: Callable[[PE], tuple[Any, ...]] = lambda _: (),
        name: str = "",
    ) -> Launch:
        """Starts a kernel on PEs, with the arguments of each; nothing runs before `run`."""
        chosen = [self.topology.check(place) for place in places]
        if not chosen or len(set(chosen)) != len(chosen):
            raise ValueError(f"launch: {len(chosen)} PEs, {len(set(chosen))} different; allowed: each once, at least 1")
        launch = Launch(name or getattr(kernel, "__name__", "kernel"), chosen)
        if self._failed:
            raise ValueError(f"launch: {self._failed} has failed on this machine; allowed: a new machine")
        busy = {each.place: each.launch.name for each in self._live}
        if taken := [place for place in chosen if place in busy]:
            # Two programs would wait for one queue, and one of them would never be woken.
            raise ValueError(f"launch: {taken[0]} has {busy[taken[0]]} to run; allowed: a launch on it after `run`")
        start = self.now + max(map(self.dispatch_latency, chosen))
        programs: list[Program] = []
        for place in chosen:
            generator = kernel(Context(place), *arguments(place))
            if not isinstance(generator, Generator):
                raise ValueError(
                    f"launch: {launch.name} is no generator, it gave {type(generator).__name__}; allowed: a function"
                    " with yield"
                )
            programs.append(Program(place, generator, launch))
        for program in programs:
            self._live.append(program)
            self.engine.at(start, partial(self._begin, program))
        return launch

    def run(self) -> None:
        """Advances time until all programs have ended; a deadlock is told with who waits for what."""
        try:
            self.engine.run()
        except BaseException:
            self._end_all()
            raise
        if self._live:
            waiting = [Waiting(each.place, each.waits_for, each.call_site()) for each in self._live]
            self._end_all()
            raise IpcqDeadlock(waiting, self.queues.told())

    def run_launch(
        self,
        kernel: Kernel,
        places: Sequence[PE],
        arguments: Callable[[PE], tuple[Any, ...]] = lambda _: (),
        name: str = "",
    ) -> Launch:
        """A launch, waited for."""
        launch = self.launch(kernel, places, arguments, name)
        self.run()
        return launch

    def _end_all(self) -> None:
        self.engine.clear()
        for program in self._live:
            self._failed = program.launch.name
            program.generator.close()
        self._live.clear()

    def _begin(self, program: Program) -> None:
        program.launch.started[program.place] = self.now
        self._resume(program, None)

    def _resume(self, program: Program, value: Any) -> None:
        program.waits_for = ""
        try:
            request = program.generator.send(value)
        except StopIteration as ended:
            self._live.remove(program)
            program.launch.results[program.place] = ended.value
            program.launch.finished[program.place] = self.now
            return
        except BaseException:
            self._failed = program.launch.name
            self._live.remove(program)
            raise
        if isinstance(request, Compute):
            self._compute(program, request)
        elif isinstance(request, Send):
            self._send(program, request)
        elif isinstance(request, Receive):
            self._receive(program, request)
        else:
            self._failed = program.launch.name
            raise ValueError(
                f"{program.place}: {program.launch.name} yields {request!r:.60} at {program.call_site()}; allowed:"
                " pe.compute, pe.send, pe.receive"
            )

    def _compute(self, program: Program, request: Compute) -> None:
        stop = self.now + request.seconds
        self.spans.append(Span(program.place, request.what, self.now, stop))
        self.engine.at(stop, lambda: self._resume(program, None))

    def _send(self, program: Program, request: Send) -> None:
        pair = self.queues.pair(program.place, request.direction)
        if pair.in_flight >= pair.slots:
            program.waits_for = f"the credit of message {pair.freed} in direction {request.direction} from {pair.peer}"
            pair.wake_sender = lambda: self._send(program, request)
            return
        program.waits_for = ""
        self.queues.send(pair, request.payload)
        self.engine.at(self.now, lambda: self._resume(program, None))

    def _receive(self, program: Program, request: Receive) -> None:
        pair, start = self.queues.pair(program.place, request.direction), self.now
        if not self.queues.filled(pair):
            program.waits_for = (
                f"message {pair.taken} in slot {pair.taken % pair.slots} of direction {request.direction}"
                f" from {pair.peer}"
            )
            pair.wake = lambda: self._receive(program, request)
            return
        program.waits_for = ""

        def done(payload: Payload) -> None:
            self.spans.append(Span(program.place, f"receive {request.direction}", start, self.now))
            self._resume(program, payload)

        self.queues.take(pair, done)
