"""A contract that says something the checker would not execute does not load, and the error names the line."""

from __future__ import annotations

from pathlib import Path

import pytest

import samebits.ops
from samebits.contracts.loading import load_contract
from samebits.contracts.orders import ORDERS, declared_order, sum_error
from samebits.contracts.strict_yaml import ContractError, load
from samebits.numerics.order import height

COMPONENTS = sorted(Path(samebits.ops.__path__[0]).glob("*/contract.yaml"))
GOOD = """
contract: total
prefix: TO
version: 1.0.0
requires_level: 3
refs: [{work: "A work", locator: page 1}]
depends_on: []
numerics: {accumulator: float32, fused: none, flush_to_zero: false, tf32: false, atomics: false}
equations:
  TO-EQ1: {text: "y = sum x", reference: "samebits.reference:total"}
subjects:
  TO-S1: {object: "samebits.ops:total", equation: TO-EQ1, spec: total, orders: {cpu: {float32: lanes-256}}}
  TO-S2: {object: "samebits.ops:mean", equation: TO-EQ1, spec: mean, orders: {cpu: {float32: lanes-256}}}
domains:
  TO-D1:
    shapes: [[1, 1], [5, 7]]
    recipes: [normal, wide]
    formats: [float32]
    seeds: [3]
    draw: {sizes: ["1..33", "16, 32"], recipes: [normal], calls: 10000}
obligations:
  TO-OB1:
    subject: TO-S1
    predicate: {name: sums_to, value: 1}
    domain: TO-D1
    tolerance: {kind: ulp, value: 2}
    tests: [FALSIFY-TO-001]
    mutants: [TO-MU1]
  TO-OB2:
    subject: TO-S2
    predicate: {name: accuracy}
    domain: TO-D1
    tolerance: {kind: derived, bound: order}
    tests: [FALSIFY-TO-002]
    mutants: [TO-MU2]
tests:
  FALSIFY-TO-001: {obligation: TO-OB1, prediction: one, if_fails: lost, examples: [5x7 normal float32 seed 3]}
  FALSIFY-TO-002: {obligation: TO-OB2, prediction: two, if_fails: lost, examples: [1x1 wide float32 seed 3]}
mutants:
  TO-MU1: {of: TO-S1, object: "samebits.faults:one"}
  TO-MU2: {of: TO-S2, object: "samebits.faults:two"}
proofs:
  TO-PR1: {obligations: [TO-OB1], kind: enumeration, backends: [cpu], object: "samebits.proofs:every"}
changes: [{version: 1.0.0, reason: "the first"}]
""".lstrip()


def test_the_components_load() -> None:
    assert {"attention", "cross_entropy", "matmul", "rmsnorm"} <= {path.parent.name for path in COMPONENTS}
    for path in COMPONENTS:
        contract = load_contract(path)
        assert contract.contract == path.parent.name
        assert all(obligation.mutants for obligation in contract.obligations.values())


def test_what_a_contract_says_is_there(tmp_path: Path) -> None:
    path = tmp_path / "contract.yaml"
    path.write_text(GOOD)
    contract = load_contract(path)
    obligation = contract.obligations["TO-OB1"]
    assert (obligation.name, obligation.parameters, obligation.tolerance.value) == ("sums_to", {"value": 1}, 2.0)
    assert [list(sizes) for sizes in contract.domains["TO-D1"].draw.axes()] == [list(range(1, 34)), [16, 32]]
    assert contract.changes[0].reason == "the first" and contract.path == path


OBLIGATIONS = GOOD[GOOD.index("obligations:\n") : GOOD.index("tests:\n")]
# What is written instead, once, the line the error must name, and its words.
FAULTS = {
    "unknown key": ("depends_on: []", "status: proved", 6, "unknown key 'status'"),
    "misspelt inner key": ("    seeds: [3]", "    seed: [3]", 18, "unknown key 'seed'"),
    "misspelt key of a draw": ("calls: 10000", "examples: 10000", 19, "unknown key 'examples'"),
    "repeated key": ("prefix: TO", "prefix: TO\nprefix: TO", 3, "key 'prefix' appears twice; first on line 2"),
    "repeated id": ("  TO-MU2: {of", "  TO-MU1: {of", 40, "key 'TO-MU1' appears twice"),
    "missing key": ("version: 1.0.0\n", "", 1, "key 'version' is missing"),
    "missing inner key": (", if_fails: lost", "", 36, "key 'if_fails' is missing"),
    "bad version": ("version: 1.0.0", "version: newest", 3, "version must look like 1.0.0, got 'newest'"),
    "version as a number": ("version: 1.0.0", "version: 1.0", 3, "version: must be text, got 1.0"),
    "level": ("requires_level: 3", "requires_level: 5", 4, "requires_level is 5; allowed: 0 to 4"),
    "level as text": ("requires_level: 3", 'requires_level: "3"', 4, "must be a whole number, got '3'"),
    "level of a backend": ("requires_level: 3", "requires_level: {cpu: 5}", 4, "is cpu 5; allowed: 0 to 4"),
    "level of too few": ("requires_level: 3", "requires_level: {triton: 3}", 4, "allowed: a level for each of cpu"),
    "level as a list": ("requires_level: 3", "requires_level: [3]", 4, "must be a whole number, got [3]"),
    "dependency twice": ("depends_on: []", "depends_on: [a, a]", 6, "depends_on names one twice"),
    "unknown predicate": ("name: sums_to", "name: adds_up", 21, "unknown predicate 'adds_up'"),
    "predicate without name": ("{name: sums_to, value: 1}", "{value: 1}", 21, "predicate has no name"),
    "parameter that is a list": ("value: 1}", "value: [1]}", 21, "parameter 'value' of sums_to must be a scalar"),
    "unknown order": ("{float32: lanes-256}", "{float32: lanes-9}", 11, "unknown order 'lanes-9'"),
    "unknown backend": ("{cpu: {float32", "{tpu: {float32", 11, "unknown backend 'tpu'"),
    "unknown format": ("formats: [float32]", "formats: [float8]", 14, "unknown format 'float8'"),
    "unknown recipe": ("recipes: [normal, wide]", "recipes: [odd]", 14, "unknown recipe 'odd'"),
    "unknown recipe drawn": ("recipes: [normal]", "recipes: [odd]", 14, "unknown recipe 'odd'"),
    "unknown kind of proof": ("kind: enumeration", "kind: faith", 42, "unknown kind of proof 'faith'"),
    "proof without backends": (", backends: [cpu]", "", 42, "key 'backends' is missing"),
    "proof of an unknown backend": ("backends: [cpu]", "backends: [tpu]", 42, "unknown backend 'tpu'"),
    "proof of one backend twice": ("backends: [cpu]", "backends: [cpu, cpu]", 42, "backends is cpu, cpu; allowed"),
    "proof of a backend without": ("backends: [cpu]", "backends: [triton]", 42, "TO-OB1 has no backend 'triton'"),
    "artifact of the CPU": ("kind: enumeration", "kind: artifact", 42, "of kind artifact is cpu; allowed: triton"),
    "expression of the CPU": ("kind: enumeration", "kind: dag", 42, "of kind dag is cpu; allowed: triton"),
    "proof without an object": (
        ', object: "samebits.proofs:every"',
        "",
        42,
        "'object' is missing; a proof of kind enumeration needs one",
    ),
    "no object": ('"samebits.faults:one"', "samebits.faults", 39, "'samebits.faults' is not importable"),
    "dangling id": ("mutants: [TO-MU1]", "mutants: [TO-MU9]", 21, "'TO-MU9' is not an id of mutants"),
    "dangling subject": ("subject: TO-S2", "subject: TO-S9", 28, "'TO-S9' is not an id of subjects"),
    "dangling proof": ("obligations: [TO-OB1]", "obligations: [TO-OB9]", 42, "'TO-OB9' is not an id of obligations"),
    "test of another": ("tests: [FALSIFY-TO-001]", "tests: [FALSIFY-TO-002]", 21, "FALSIFY-TO-002 is a test of TO-OB2"),
    "unused id": ("mutants:\n", 'mutants:\n  TO-MU3: {of: TO-S1, object: "a:b"}\n', 39, "TO-MU3: is never used"),
    "no mutant": ("mutants: [TO-MU1]", "mutants: []", 27, "must be a non-empty list"),
    "no obligation": (OBLIGATIONS, "obligations: {}\n", 22, "'TO-OB1' is not an id of obligations"),
    "no test": ("tests: [FALSIFY-TO-001]", "tests: []", 26, "must be a non-empty list"),
    "test with no example": ("examples: [5x7 normal float32 seed 3]", "examples: []", 36, "must be a non-empty list"),
    "malformed example": ("5x7 normal float32 seed 3", "5x7 normal float32", 36, "is not an example"),
    "example of another shape": ("5x7 normal", "5x7x9 normal", 36, "has 3 sizes; allowed: 2 of at least 1"),
    "bare-number tolerance": ("{kind: ulp, value: 2}", "2", 25, "must be a mapping, got 2"),
    "string tolerance": ("value: 2}", 'value: "2"}', 25, "must be a number, got '2'"),
    "boolean tolerance": ("value: 2}", "value: true}", 25, "must be a number, got True"),
    "negative tolerance": ("value: 2}", "value: -1}", 21, "tolerance is -1.0; allowed: finite, at least 0"),
    "infinite tolerance": ("value: 2}", "value: .inf}", 25, "'.inf' reads differently to different readers"),
    "tolerance too large": ("value: 2}", "value: 1e999}", 25, "1e999 is too large for a number"),
    "keys of another kind": ("kind: ulp, value: 2", "kind: ulp, bound: sum", 21, "needs value, got bound"),
    "absolute without why": ("kind: ulp, value: 2", "kind: abs, value: 2", 21, "needs value, why, got value"),
    "unknown tolerance": ("kind: ulp, value: 2", "kind: close", 21, "unknown tolerance 'close'"),
    "unknown bound": ("bound: order", "bound: hope", 28, "unknown bound 'hope'"),
    "accuracy bit for bit": ("{kind: derived, bound: order}", "{kind: bitwise}", 28, "only accuracy is not bitwise"),
    "promise with slack": ("name: sums_to, value: 1", "name: batch", 21, "tolerance of batch is ulp"),
    "too few calls": ("calls: 10000", "calls: 9999", 14, "draw.calls is 9999; level 3 asks for 10000"),
    "size zero": ('"1..33"', '"0..33"', 14, "'0..33' is not a size"),
    "choice of zero": ('"16, 32"', '"0, 32"', 14, "'0, 32' is not a size"),
    "range that falls": ('"1..33"', '"33..1"', 14, "'33..1' is not a size"),
    "size as a number": ('"1..33"', "33", 19, "must be text, got 33"),
    "too many axes": ('"16, 32"', ", ".join(['"1..1048576"'] * 20), 14, "draw has 21 sizes; allowed: 8"),
    "shape of zero": ("[5, 7]]", "[0, 7]]", 14, "shape [0, 7] does not fit"),
    "negative seed": ("seeds: [3]", "seeds: [-3]", 14, "seeds are [-3]; allowed: 0 to 2^31-1"),
    "anchor": ("seeds: [3]", "seeds: &x [3]", 18, "anchors and aliases are not allowed"),
    "alias": ("seeds: [3]", "seeds: *x", 18, "anchors and aliases are not allowed"),
    "merge": ("seeds: [3]", "<<: {seeds: [3]}", 18, "a key is plain text, got '<<'"),
    "octal": ("seeds: [3]", "seeds: [010]", 18, "'010' reads differently to different readers"),
    "base sixty": ("seeds: [3]", "seeds: [1:30]", 18, "'1:30' reads differently to different readers"),
    "hexadecimal": ("seeds: [3]", "seeds: [0x1F]", 18, "'0x1F' reads differently to different readers"),
    "underscores": ("calls: 10000", "calls: 10_000", 19, "'10_000' reads differently to different readers"),
    "many digits": ("seeds: [3]", f"seeds: [{'9' * 5000}]", 18, "has too many digits; allowed: 18"),
    "tag": ("prefix: TO", "prefix: !!binary TO", 2, "tag 'tag:yaml.org,2002:binary' is not allowed"),
    "harmless tag": ("prefix: TO", "prefix: !!str TO", 2, "tag 'tag:yaml.org,2002:str' is not allowed"),
    "object tag": ("prefix: TO", "prefix: !!python/name:os.system", 2, "is not allowed"),
    "directive": ("contract: total", "%YAML 1.1\n---\ncontract: total", 1, "directives are not allowed"),
    "second document": ("changes:", "---\nchanges:", 43, "a second document begins"),
    "not yaml": ("prefix: TO", "prefix: [TO", 3, "not YAML"),
    "wrong id": ("  TO-OB1:", "  OB1:", 21, "an id of obligations must look like TO-OB"),
    "id of another prefix": ("TO-D1:\n", "XX-D1:\n", 14, "an id of domains must look like TO-D"),
    "wrong id of a test": ("  FALSIFY-TO-001:", "  FALSIFY-TO-1:", 36, "an id of tests must look like FALSIFY-"),
    "mutant of another subject": ("TO-MU1: {of: TO-S1", "TO-MU1: {of: TO-S2", 21, "TO-MU1 is planted in TO-S2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_contract_is_refused(fault: str, tmp_path: Path) -> None:
    """Planted faults, one each."""
    old, new, line, message = FAULTS[fault]
    assert old in GOOD
    path = tmp_path / "contract.yaml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ContractError) as caught:
        load_contract(path)
    said = str(caught.value)
    assert said.startswith(f"{path}:{line}: "), said
    assert message in said and said.isprintable()


def test_what_follows_may_be_left_out(tmp_path: Path) -> None:
    """Tests of an obligation, examples of a test, a bitwise tolerance: the contract is the one that says them."""
    path = tmp_path / "contract.yaml"
    said = GOOD.replace("{kind: ulp, value: 2}", "{kind: bitwise}")
    said = said.replace("[5x7 normal float32 seed 3]", "[1x1 normal float32 seed 3, 5x7 wide float32 seed 3]")
    path.write_text(said)
    whole = load_contract(path)
    for text in (
        "    tests: [FALSIFY-TO-001]\n",
        "    tolerance: {kind: bitwise}\n",
        ", examples: [1x1 normal float32 seed 3, 5x7 wide float32 seed 3]",
        ", calls: 10000",
    ):
        assert text in said
        path.write_text(said.replace(text, "", 1))
        assert load_contract(path) == whole, text


def test_a_subject_may_be_left_out_only_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "contract.yaml"
    path.write_text(GOOD.replace("    subject: TO-S1\n", "", 1))
    with pytest.raises(ContractError, match="TO-OB1: key 'subject' is missing; expected one of TO-S1, TO-S2"):
        load_contract(path)


def test_an_obligation_that_no_test_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "contract.yaml"
    orphan = GOOD.replace("    tests: [FALSIFY-TO-001]\n", "", 1).replace(
        "{obligation: TO-OB1", "{obligation: TO-OB2", 1
    )
    path.write_text(orphan)
    with pytest.raises(ContractError, match="TO-OB1: no test names it; expected at least one"):
        load_contract(path)


def test_a_derived_proof_names_no_object(tmp_path: Path) -> None:
    """What traces and what compiles is the checker's; a contract says which calls, not which code."""
    derived = GOOD.replace("cpu: {float32", "triton: {float32").replace("backends: [cpu]", "backends: [triton]")
    derived = derived.replace("kind: enumeration", "kind: dag")
    path = tmp_path / "contract.yaml"
    path.write_text(derived.replace(', object: "samebits.proofs:every"', ""))
    assert load_contract(path).proofs["TO-PR1"].by == "dag"
    path.write_text(derived)
    with pytest.raises(
        ContractError, match=r"a proof of kind dag is derived from triton_cases\.py; it names no object"
    ):
        load_contract(path)


UNREADABLE = {
    "absent": (None, "cannot be read: No such file"),
    "empty": (b"", "got an empty file"),
    "a list": (b"[1, 2]", "a contract is a mapping, got a list"),
    "too long": (b"#" * 1_000_001, "has 1000001 bytes; allowed: at most 1000000"),
    "not UTF-8": (b"contract: \xff", "not YAML"),
    "with a NUL": (b"contract: a\0b", "not YAML"),
    "a key with a line's end": (b'"a\\nb": 1', "unknown key 'a\\nb'"),
    "terminal codes in a name": (GOOD.replace("  TO-MU1:", '  "\\e[31m":').encode(), r"\x1b[31m"),
}


@pytest.mark.parametrize("fault", UNREADABLE)
def test_a_file_that_is_no_contract_is_refused(fault: str, tmp_path: Path) -> None:
    raw, message = UNREADABLE[fault]
    path = tmp_path / "contract.yaml"
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(ContractError) as caught:
        load_contract(path)
    assert message in str(caught.value) and str(caught.value).isprintable()


def test_scalars_are_what_they_look_like(tmp_path: Path) -> None:
    path = tmp_path / "scalars.yaml"
    path.write_text("a: 1e-5\nb: 1E5\nc: .5\nd: no\ne: true\nf: 12\ng: -3.0\nh: 'text'\ni: null\n")
    expected = {"a": 1e-5, "b": 1e5, "c": 0.5, "d": "no", "e": True, "f": 12, "g": -3.0, "h": "text", "i": None}
    loaded = load(path)
    assert dict(loaded) == expected
    assert all(type(loaded[key]) is type(value) for key, value in expected.items())


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    for depth in (50, 5000):
        path.write_text("a: " + "[" * depth + "]" * depth)
        with pytest.raises(ContractError):
            load(path)


@pytest.mark.parametrize("name", ORDERS)
def test_the_bound_follows_the_height(name: str) -> None:
    """sum_error grows with the height of the declared order and is never smaller than height * unit roundoff."""
    for terms in (1, 16, 17, 256, 1000):
        assert sum_error(name, terms) >= height(declared_order(name, terms)) * 2.0**-24
    assert sum_error(name, 4096) > sum_error(name, 64)


def test_an_undeclared_order_is_refused() -> None:
    for function in (declared_order, sum_error):
        with pytest.raises(ValueError, match="order 'kahan' is not declared; known: chain-1"):
            function("kahan", 8)
    with pytest.raises(ValueError, match="no bound for"):
        sum_error("chain-1", 2**24)
