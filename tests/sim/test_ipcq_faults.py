"""Faults of messages between PEs, injected as data: same bits or a named error, never wrong values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.sim.planted_queues import AnyOrderOfAnInstant, SkipsDuplicates

from samebits.sim.accelerator import QUEUES, accelerator, machine_of
from samebits.sim.ipcq import Queues
from samebits.sim.ipcq_faults import Fault, FaultPlan
from samebits.sim.kernels import IpcqDeadlock
from samebits.sim.machine import Machine
from samebits.sim.queue_pairs import IpcqError, QueueSettings
from samebits.sim.ring import ring
from samebits.sim.schedule_kernel import run_schedule
from samebits.sim.topology import PE

RANKS, ELEMENTS = 4, 1000
RING = ring(RANKS, ELEMENTS)
FOUR = accelerator(4, 4, 1, cube_mesh=(1, 1), pes=1)
EAST = (PE(1, 0, 0), "sip_E")


def values(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(ELEMENTS).astype(np.float32)


def ran(
    *faults: Fault, settings: QueueSettings = QUEUES, queues: type[Queues] = Queues, seed: int | None = None
) -> tuple[float, list[bytes], Machine]:
    """When the ring ended, every rank's bits, and the machine."""
    machine = machine_of(FOUR, settings, faults=FaultPlan(list(faults)), seed=seed, queues=queues)
    launch, found = run_schedule(machine, RING, values)
    return launch.finish - launch.started[PE(0, 0, 0)], [each.tobytes() for each in found], machine


TIME, BITS, _ = ran()


def test_an_empty_plan_changes_nothing() -> None:
    assert ran()[:2] == (TIME, BITS) and len(set(BITS)) == 1


def test_F1_a_delayed_message_changes_no_bit_and_never_saves_time() -> None:
    """On an idle ring a delay is paid one for one."""
    took = {}
    for nanoseconds in (1, 100, 1000, 5000):
        fault = Fault(EAST, 2, "delay", nanoseconds * 1e-9)
        took[nanoseconds], bits, machine = ran(fault)
        assert bits == BITS and machine.faults.injected == [fault]
    for nanoseconds, time in took.items():
        assert time == pytest.approx(TIME + nanoseconds * 1e-9, rel=1e-12)


def test_F1_a_delay_is_absorbed_while_slack_lasts() -> None:
    """Rank 0 is late anyway, so that what waits for it has time to spare."""

    def with_straggler(*faults: Fault) -> float:
        machine = machine_of(FOUR, faults=FaultPlan(list(faults)))
        late = Fault((PE(0, 0, 0), "sip_E"), 0, "delay", 3e-6)
        machine.faults = machine.queues.faults = FaultPlan([late, *faults])
        return run_schedule(machine, RING, values)[0].finish

    alone = with_straggler()
    within, beyond = (with_straggler(Fault((PE(2, 0, 0), "sip_E"), 0, "delay", late)) for late in (1e-6, 5e-6))
    assert within == alone and beyond == pytest.approx(alone + 2e-6, rel=1e-9)


def test_F2_a_duplicate_is_discarded_and_counted() -> None:
    time, bits, machine = ran(Fault(EAST, 1, "duplicate", 50e-9))
    assert (time, bits) == (TIME, BITS)
    receiver = machine.queues.pair(PE(2, 0, 0), "sip_W")
    assert receiver.discarded == 1
    assert machine.queues.pair(*EAST).freed == machine.queues.pair(*EAST).sent, "one credit came back for it"
    with pytest.raises((IpcqError, IpcqDeadlock, AssertionError, KeyError)):
        assert ran(Fault(EAST, 1, "duplicate", 50e-9), queues=SkipsDuplicates)[1] == BITS


def test_F3_a_reordered_message_is_noticed_and_never_consumed() -> None:
    with pytest.raises(IpcqDeadlock, match="injected: reorder 1 of sip 1 cube 0 pe 0 sip_E"):
        ran(Fault(EAST, 1, "reorder"))

    def overtaken() -> None:
        """Two messages are under way at once: the second comes first."""
        machine = machine_of(FOUR, faults=FaultPlan([Fault(EAST, 0, "reorder")]))
        machine.install({EAST[0]: {"sip_E": PE(2, 0, 0)}, PE(2, 0, 0): {"sip_W": EAST[0]}})

        def two(pe):  # type: ignore[no-untyped-def]
            if pe.place == EAST[0]:
                yield pe.send("sip_E", np.zeros(1))
                yield pe.send("sip_E", np.ones(1))
            else:
                for number in range(2):
                    received = yield pe.receive("sip_W")
                    assert received[0] == number, "it was consumed"

        machine.run_launch(two, [EAST[0], PE(2, 0, 0)])

    noticed = "message 1 of sip 1 cube 0 pe 0 sip_E came before message 0 and was not consumed; injected: reorder 0"
    with pytest.raises(IpcqDeadlock, match=noticed):
        overtaken()


@pytest.mark.parametrize("nth", range(6))
def test_F4_a_lost_message_is_a_deadlock_that_names_it(nth: int) -> None:
    with pytest.raises(IpcqDeadlock) as told:
        ran(Fault(EAST, nth, "lose"))
    text = str(told.value)
    assert f"message {nth} in slot {nth % 4} of direction sip_W from sip 1" in text
    assert f"injected: lose {nth} of sip 1 cube 0 pe 0 sip_E" in text


@pytest.mark.parametrize("nth", range(6))
def test_F5_a_lost_message_that_the_link_sends_again_changes_no_bit(nth: int) -> None:
    """Checks of every event (R42) hold throughout; the ring ends later by what the link waited."""
    time, bits, _ = ran(Fault(EAST, nth, "lose"), settings=replace(QUEUES, retry_after=2e-6))
    assert bits == BITS and time == pytest.approx(TIME + 2e-6, rel=1e-9)


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_F6_lost_credits_block_the_sender_within_its_slots(slots: int) -> None:
    faults = [Fault(EAST, nth, "lose_credit") for nth in range(slots)]
    machine = machine_of(FOUR, replace(QUEUES, slots=slots), faults=FaultPlan(faults))
    with pytest.raises(IpcqDeadlock) as told:
        run_schedule(machine, RING, values)
    text = str(told.value)
    assert "the credit of message 0 in direction sip_E" in text and machine.queues.pair(*EAST).sent == slots
    assert all(f"lose credit {nth} of sip 1 cube 0 pe 0 sip_E" in text for nth in range(slots))


def test_seeds_reorder_events_and_delay_messages_and_the_bits_stay() -> None:
    """Fifty seeds, fifty timings, one hash; one seed twice is one run (E1)."""
    found = [ran(seed=seed, settings=replace(QUEUES, jitter=200e-9))[:2] for seed in range(50)]
    assert {tuple(bits) for _, bits in found} == {tuple(BITS)}
    assert len({time for time, _ in found}) == 50 and min(time for time, _ in found) >= TIME
    assert ran(seed=7, settings=replace(QUEUES, jitter=200e-9))[0] == found[7][0]


def test_messages_of_a_link_keep_their_order_within_an_instant() -> None:
    """What waits behind a late message arrives at the same instant; no seed may turn the two round."""

    def stream(queues: type[Queues], seed: int) -> list[float]:
        sender, receiver = EAST[0], PE(2, 0, 0)
        machine = machine_of(FOUR, replace(QUEUES, jitter=2e-6), seed=seed, queues=queues)
        machine.install({sender: {"sip_E": receiver}, receiver: {"sip_W": sender}})

        def numbers(pe):  # type: ignore[no-untyped-def]
            got = []
            for number in range(8):
                if pe.place == sender:
                    yield pe.send("sip_E", np.full(2, number))
                else:
                    received = yield pe.receive("sip_W")
                    got.append(float(received[0]))
            return got

        found: list[float] = machine.run_launch(numbers, [sender, receiver]).results[receiver]
        return found

    assert all(stream(Queues, seed) == list(map(float, range(8))) for seed in range(30))
    caught = 0
    for seed in range(30):
        try:
            caught += stream(AnyOrderOfAnInstant, seed) != list(map(float, range(8)))
        except IpcqDeadlock:
            caught += 1
    assert caught >= 1


def test_faults_drawn_from_a_seed_are_the_same_again() -> None:
    channels = [(PE(sip, 0, 0), "sip_E") for sip in range(4)]

    def plan() -> FaultPlan:
        return FaultPlan.drawn(5, channels, ["delay", "duplicate"], count=6, messages=6, amount=1e-6)

    runs = []
    for _ in range(2):
        machine = machine_of(FOUR, faults=plan())
        launch, found = run_schedule(machine, RING, values)
        runs.append((launch.finish, [str(fault) for fault in machine.faults.injected]))
        assert [each.tobytes() for each in found] == BITS
    assert runs[0] == runs[1] and len(runs[0][1]) == 6


def test_a_fault_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="the kind is 'corrupt'; allowed: delay, duplicate"):
        Fault(EAST, 0, "corrupt")
    with pytest.raises(ValueError, match="two of them hit the same message"):
        FaultPlan([Fault(EAST, 0, "delay"), Fault(EAST, 0, "lose")])
