"""`samebits contract replay | collect | sign | verify`: receipts run again, taken over, and signed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.cli.commands.contract_components import (
    Components,
    Names,
    Receipts,
    Trusted,
    chosen,
    known_components,
    launch_by_python,
    store_of,
    trusted_components,
)
from samebits.cli.console import VERDICT_STYLES, Json, output, print_json, progress
from samebits.contracts.store import Store

if TYPE_CHECKING:
    from samebits.contracts.receipts import Receipt

STYLES = {"reproduced": "green", "false": "bold red", **VERDICT_STYLES}


def replay(
    names: Names = None,
    sample: Annotated[int | None, typer.Option(help="At most so many runs. Default: what fits the seconds.")] = None,
    seed: Annotated[str, typer.Option(help="What the sample is drawn by.")] = "1",
    seconds: Annotated[float, typer.Option(help="For all of them together.")] = 60.0,
    components: Components = None,
    trust: Trusted = None,
    receipts: Receipts = None,
    as_json: Json = False,
) -> None:
    """Run a random sample of receipts again. Example: [bold]samebits contract replay --seconds 60[/bold]"""
    from rich.text import Text

    from samebits.checker.replaying import UNJUDGED, Replay, candidates, sampled
    from samebits.checker.replaying import replay as run_again
    from samebits.checker.status import standings
    from samebits.contracts.receipts import FALSE

    if (sample is not None and sample < 1) or seconds <= 0:
        raise ValueError(f"replay: sample={sample}, seconds={seconds}; allowed: at least 1, more than 0")
    launch_by_python()
    known = trusted_components(components, trust)
    wanted = chosen(names, known)
    standing = standings(known, store_of(receipts, components), wanted)
    found = {name: each for name, each in standing.items() if name in wanted}
    listed = candidates(known, [one for each in found.values() for one in each.receipts])
    edited = [line for each in found.values() for line in each.false]
    # How long one takes is its own word: what is never drawn for that reason must not look replayed.
    too_long = [str(receipt) for each in listed if each.seconds > seconds for receipt in each.receipts]
    done: list[Replay] = []
    with progress("replaying") as tell:
        for each in run_again(sampled(listed, seed, sample, seconds), known, seconds):
            tell(str(each))
            done.append(each)
    false = [*edited, *(str(each) for each in done if each.verdict == FALSE)]
    unjudged = [each for each in done if each.verdict == UNJUDGED]
    if as_json:
        keys = ("verdict", "detail", "seconds")
        print_json(
            {
                "seed": seed,
                "can_run_here": len(listed),
                "false": false,
                "too_long": too_long,
                "replayed": [
                    {
                        "receipt": str(each.receipt),
                        "id": each.receipt.identity,
                        **{key: getattr(each, key) for key in keys},
                    }
                    for each in done
                ],
            }
        )
    else:
        for line in edited:
            output().print(Text(line, style=STYLES["false"]))
        for each in done:
            output().print(Text(f"{each} ({each.seconds:.1f} s)", style=STYLES[each.verdict]))
        print(
            f"{len(done)} receipts replayed of {sum(len(each.receipts) for each in listed)} that can run here, "
            f"seed {seed}: {len(false)} false, {len(unjudged)} could not be judged"
        )
        if too_long:
            print(f"never drawn, for they say that they take longer than {seconds:g} s: {len(too_long)} receipts")
    raise typer.Exit(1 if false else 3 if unjudged or not done else 0)


def collect(
    folder: Annotated[Path, typer.Argument(help="A folder of receipts made elsewhere.")],
    components: Components = None,
    receipts: Receipts = None,
) -> None:
    """Take over receipts of another machine; edited ones are refused.

    A receipt here that counts stays where the other's is stale, and one that does not hold where the other's does.

    Example: [bold]samebits contract collect h200[/bold]"""
    from samebits.checker.present import Present
    from samebits.contracts.receipts import compared

    if not folder.is_dir():
        raise ValueError(f"collect: {folder} is not a folder; pass a folder of receipts")
    known = known_components(components)
    theirs, store = Store(folder), store_of(receipts, components, writes=True)
    given = [receipt for name in known for receipt in theirs.read(name)]
    if not given:
        raise ValueError(f"collect: {folder} has no receipt of a known contract")
    present = Present(known)
    ours = {receipt.key: receipt for name in known for receipt in store.read(name)}

    def better(receipt: Receipt) -> bool:
        held = ours.get(receipt.key)
        if held is None or not compared(held, present.of(held)).counts:
            return True
        return compared(receipt, present.of(receipt)).counts and not refuted(receipt)

    def refuted(receipt: Receipt) -> bool:
        """What was found here is not unsaid by the same machine elsewhere: only a run here takes its place."""
        held = ours.get(receipt.key)
        return held is not None and not held.holds and receipt.holds and compared(held, present.of(held)).counts

    taken, against = [each for each in given if better(each)], [each for each in given if refuted(each)]
    store.write(taken)
    machines = ", ".join(dict.fromkeys(receipt.machine for receipt in given))
    stale = len(given) - len(taken) - len(against)
    stayed = f"; {stale} stale ones left where newer ones count" if stale else ""
    stayed += f"; {len(against)} left that hold where one here does not: {against[0]}" if against else ""
    print(f"{len(taken)} receipts of {machines} taken over into {store.folder}{stayed}")


def sign(
    key: Annotated[Path, typer.Option(help="A private ssh key, like ~/.ssh/id_ed25519.")],
    components: Components = None,
    receipts: Receipts = None,
) -> None:
    """Sign the folder of receipts. Example: [bold]samebits contract sign --key ~/.ssh/id_ed25519[/bold]"""
    from samebits.contracts.signing import sign as write_signature

    print(f"written: {write_signature(store_of(receipts, components, writes=True).folder, key.expanduser())}")


def verify(
    allowed_signers: Annotated[Path, typer.Option(help="Lines like `name ssh-ed25519 AAAA...`.")],
    components: Components = None,
    receipts: Receipts = None,
    as_json: Json = False,
) -> None:
    """Check that signature, offline. Example: [bold]samebits contract verify --allowed-signers signers.txt[/bold]"""
    from samebits.contracts.signing import verify as find_signer

    folder = store_of(receipts, components).folder
    signer = find_signer(folder, allowed_signers.expanduser())
    if as_json:
        print_json({"holds": bool(signer), "signer": signer, "folder": str(folder)})
    elif signer:
        print(f"holds: {folder} is signed by {signer}")
    else:
        print(f"does not hold: no allowed signer signed {folder} as it is here")
    raise typer.Exit(0 if signer else 1)
