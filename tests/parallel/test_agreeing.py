"""Facts of ranks: what differs is named with key, ranks and both values; nothing of them listens beyond loopback."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path

import psutil
import pytest
import torch
from tests.parallel.ranks import on_ranks
from tests.parallel.test_launching import Lines
from torch.distributed import TCPStore

from samebits.parallel import agreeing
from samebits.parallel.agreeing import agree, code_facts, difference, digest_of
from samebits.parallel.launching import launch
from samebits.parallel.local_ranks import LocalRanks
from samebits.parallel.rendezvous import Meeting, is_loopback, open_store
from samebits.parallel.world import World

PROGRAM = str(Path(__file__).with_name("programs.py"))


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ([{"a": 1}, {"a": 1}], ""),
        ([{"a": 1}, {"a": 2}], "a is 1 on rank 0 and 2 on rank 1; allowed: one value on all ranks"),
        ([{"a": 1}, {"a": 1}, {"a": 1.0}], "a is 1 on rank 0 and 1.0 on rank 2; allowed: one value on all ranks"),
        ([{"a": 0.0}, {"a": -0.0}], "a is 0.0 on rank 0 and -0.0 on rank 1; allowed: one value on all ranks"),
        ([{"a": None}, {"a": "x"}], 'a is null on rank 0 and "x" on rank 1; allowed: one value on all ranks'),
        ([{"a": 1}, {}, {"a": 2}], "a is 1 on rank 0 and 2 on rank 2; allowed: one value on all ranks"),
        ([{"a": 1}, {"b": 2}], ""),
        (
            [{"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 1, "c": 3}],
            "a is 1 on rank 0 and 2 on rank 1; allowed: one value on all ranks (also different: c)",
        ),
    ],
)
def test_what_differs_is_named(facts: list[dict[str, object]], said: str) -> None:
    assert difference(facts) == said


def test_long_values_differ_in_the_line_too() -> None:
    line = difference([{"prompt": "x" * 500 + "1"}, {"prompt": "x" * 500 + "2"}])
    first, second = line.split(" and ")[0], line.split(" and ")[1]
    assert "\n" not in line and len(line) < 300 and first.split("sha256:")[1][:16] != second.split("sha256:")[1][:16]


def told(world: World, values: list[int]) -> str:
    agree(world, "numbers", {"number": 7})
    try:
        agree(world, "numbers", {"number": values[world.rank], "more": 1})
    except ValueError as error:
        return str(error)
    return ""


def test_every_rank_says_the_same_line() -> None:
    line = "ranks: number is 5 on rank 0 and 6 on rank 2; allowed: one value on all ranks"
    assert on_ranks(3, told, [5, 5, 6]) == [line] * 3
    assert on_ranks(3, told, [5, 5, 5]) == [""] * 3


def test_tensors_are_compared_by_bits() -> None:
    zero = torch.zeros(3)
    assert digest_of([("w", zero)]) == digest_of([("w", zero.clone())])
    assert len({digest_of([each]) for each in [("w", zero), ("v", zero), ("w", -zero), ("w", zero.bfloat16())]}) == 4


def of_another_copy(world: World, copy: str) -> str:
    if world.rank == 1:
        agreeing.PACKAGE = Path(copy)  # type: ignore[misc]
        code_facts.cache_clear()
    try:
        agree(world, "planted", code_facts())
    except ValueError as error:
        return str(error)
    return ""


def test_another_source_of_the_package_is_refused(tmp_path: Path) -> None:
    """Planted: the second rank has a copy of the package, in one file of which a comment differs."""
    kept = shutil.ignore_patterns("__pycache__", "*.so", "*.cpp", "*.h", "*.yaml")
    copy = shutil.copytree(agreeing.PACKAGE, tmp_path / "samebits", ignore=kept)
    assert on_ranks(2, of_another_copy, str(copy)) == ["", ""]
    with (copy / "model" / "weights.py").open("a") as file:
        file.write("# one more line\n")
    first, second = on_ranks(2, of_another_copy, str(copy))
    assert first == second and first.startswith(
        f"ranks: samebits code is {code_facts()['samebits code']} on rank 0 and"
    )


def test_the_code_is_compared_when_ranks_join() -> None:
    found = on_ranks(2, joined_facts)
    assert found[0] == found[1] == sorted({*code_facts(), "device", "transport"})


def joined_facts(world: World) -> list[str]:
    return sorted(json.loads(world.store.get("facts/code/1/0")))


def addresses_heard() -> set[str]:
    """Where this process and all that it started listen."""
    here = psutil.Process()
    processes = [here, *here.children(recursive=True)]
    found = [each for process in processes for each in process.net_connections() if each.status == "LISTEN"]
    return {each.laddr.ip for each in found}


def own_rank(world: World) -> int:
    return world.rank


def test_ranks_of_a_program_listen_on_loopback_alone() -> None:
    with LocalRanks(2) as ranks:
        assert ranks.call(own_rank) == [0, 1]
        heard = addresses_heard()
    assert heard and all(is_loopback(address) for address in heard), heard


def test_nothing_listens_beyond_loopback() -> None:
    """Launcher, store and messages of ranks on one machine, while they work."""
    heard: list[set[str]] = []

    class Listening(Lines):
        def show_out(self, data: bytes) -> None:
            super().show_out(data)
            heard.append(addresses_heard())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch([sys.executable, PROGRAM, "forever"], 2, screen=Listening())
    assert heard[0] and all(is_loopback(address) for address in heard[0]), heard


def test_a_store_that_listens_everywhere_is_noticed() -> None:
    """Planted: torch's own way to open one."""
    with_torch = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    listening = [each.laddr for each in psutil.Process().net_connections() if each.status == "LISTEN"]
    assert any(each.port == with_torch.port and not is_loopback(each.ip) for each in listening)
    ours = open_store("127.0.0.1", 0, 5.0, serves=True)
    listening = [each.laddr for each in psutil.Process().net_connections() if each.status == "LISTEN"]
    assert [each.ip for each in listening if each.port == ours.port] == ["127.0.0.1"]


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        meeting = Meeting.described(
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        )
        assert meeting is not None and meeting.serves
        with pytest.raises(
            ValueError, match=rf"^ranks: port {port} of 127.0.0.1 is in use by another program; .*ss -lt"
        ):
            meeting.open_store(60.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", "2"),
        ("RANK", "-1"),
        ("RANK", "x"),
        ("WORLD_SIZE", "0"),
        ("WORLD_SIZE", "9" * 30),
        ("MASTER_PORT", "65536"),
        ("MASTER_PORT", "1.5"),
        ("RANK", ""),
    ],
)
def test_an_environment_that_cannot_be_is_one_line(name: str, value: str) -> None:
    good = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with pytest.raises(ValueError, match=rf"^ranks: {name} is .*; allowed: a whole number, [01] to [0-9]+$"):
        Meeting.described(good | {name: value})
