"""The performance gate: two files compared by ratios, and rows against committed bounds."""

import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import gate  # noqa: E402
from rows import rows  # noqa: E402


@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    """Runs `gate.py OLD NEW [OPTION...]` on two texts or objects: (code, stdout, stderr)."""

    def run(old, new, *options):
        for name, content in (("old", old), ("new", new)):
            (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        monkeypatch.setattr(sys, "argv", ["gate.py", str(tmp_path / "old"), str(tmp_path / "new"), *options])
        return (gate.main(), *capsys.readouterr())

    return run


OLD = {"ratios": {"a / numpy": 0.5, "a / torch": 0.7, "a / twin": 0.01, "b / numpy": 0.8}}


@pytest.mark.parametrize("factor,code", [(1.0, 0), (1.09, 0), (1.11, 1), (0.5, 0)])
def test_it_fails_on_a_row_that_grew_by_more_than_a_tenth(compare, factor, code):
    new = {"ratios": {k: v * (factor if k[0] == "a" else 1) for k, v in OLD["ratios"].items()} | {"c / numpy": 1.0}}
    got, out, _ = compare(OLD, new)
    assert got == code and ("REGRESSION" in out) == bool(code)
    assert "only in NEW: c" in out


def test_a_slow_machine_and_one_peer_that_had_a_bad_moment_do_not_fail_it(compare):
    # Seconds are not looked at; the ratio to one peer of three may be off.
    assert compare(OLD, {"ratios": OLD["ratios"] | {"a / torch": 2.0}})[0] == 0
    assert compare(OLD, {"ratios": OLD["ratios"] | {"a / torch": 2.0, "a / numpy": 2.0}})[0] == 1


def test_a_row_that_is_gone_is_named_and_fails_and_so_does_a_void_one(compare):
    new = {"ratios": {k: v for k, v in OLD["ratios"].items() if k[0] == "a"}}
    code, out, _ = compare(OLD, new)
    assert code == 1 and "only in OLD: b" in out
    code, out, _ = compare(OLD, new, "--common")  # a run of some rows
    assert code == 0 and "only in OLD: b" in out
    wrong = {"rows": {"b": {"figures": {"opgraft": {"wrong": "differs in 3"}, "numpy": {"min": 1.0}}}}}
    code, out, _ = compare(OLD, new | wrong)
    assert code == 1 and "VOID: {'wrong': 'differs in 3'}" in out
    code, out, _ = compare(OLD | wrong, new | wrong)  # it was before
    assert code == 0


@pytest.mark.parametrize(
    "content,said",
    [
        ("{", "Expecting property name"),
        ("", "Expecting value"),
        ([], 'must be an object with "ratios"'),
        ({"ratios": [1]}, 'must be an object with "ratios"'),
        ({"ratios": {"a / numpy": "fast"}}, "the ratio of 'a / numpy' must be a positive number, got 'fast'"),
        ({"ratios": {"a / numpy": 0}}, "must be a positive number, got 0"),
        ('{"ratios": {"a / numpy": NaN}}', "must be a positive number, got nan"),
        ({"ratios": {"a / numpy": True}}, "must be a positive number, got True"),
        ({"ratios": {"a / numpy": 1.0}, "rows": []}, '"rows" must be an object'),
        ({"ratios": {"z / numpy": 1.0}}, "share no ratio"),
    ],
)
def test_it_refuses_what_it_cannot_compare(compare, content, said):
    for pair in ((OLD, content), (content, OLD)):
        code, _, err = compare(*pair)
        assert code == 2 and said in err


def test_it_refuses_a_file_that_is_not_there(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["gate.py", str(tmp_path / "x"), str(tmp_path / "y")])
    assert gate.main() == 2 and "No such file" in capsys.readouterr().err


def test_its_rows_exist_and_have_bounds_for_every_instruction_set():
    table = {r.name: r for r in rows()}
    bounds = json.loads(gate.BOUNDS.read_text())
    whole = {"SSE4", "AVX2", "AVX-512"}
    assert {key.split()[0] for key in bounds} == whole
    for name in gate.SMALL:
        peers = ["twin"] + ["numpy"] * (table[name].numpy is not None)
        for simd in whole:
            assert all(0 < bounds[simd][f"{name} / {p}"] for p in peers), name
    for key in bounds.keys() - whole:  # of another vendor
        assert bounds[key].keys() <= bounds[key.split()[0]].keys()


ROW = "SwiGLU 1x11008"


def test_a_row_is_measured_and_one_above_its_bound_is_repeated_and_then_fails(monkeypatch, capsys):
    assert gate.small([ROW]) == 0
    assert "TOO SLOW" not in capsys.readouterr().out
    taken = []

    def slow(row, running, folder):
        taken.append(row.name)
        return {f"{ROW} / twin": 10.0, f"{ROW} / numpy": 10.0}

    monkeypatch.setattr(gate, "ratios_of", slow)
    assert gate.small([ROW]) == 1
    assert "TOO SLOW" in capsys.readouterr().out and taken == [ROW] * gate.ATTEMPTS


def test_one_bad_measurement_does_not_fail_it(monkeypatch):
    found = iter([{f"{ROW} / twin": 10.0}, {f"{ROW} / twin": 1e-3}])
    monkeypatch.setattr(gate, "ratios_of", lambda *_: next(found))
    assert gate.small([ROW]) == 0


def test_one_bad_peer_does_not_fail_it(monkeypatch):
    monkeypatch.setattr(gate, "ratios_of", lambda *_: {f"{ROW} / twin": 10.0, f"{ROW} / numpy": 1e-3})
    assert gate.small([ROW]) == 0


def test_a_vendor_has_bounds_of_its_own_before_those_of_all(monkeypatch, tmp_path):
    import machine

    stored = {machine.simd(): {f"{ROW} / twin": 1.0, f"{ROW} / numpy": 1.0},
              f"{machine.simd()} Other": {f"{ROW} / twin": 3.0}}  # fmt: skip
    monkeypatch.setattr(gate, "BOUNDS", tmp_path / "gate.json")
    gate.BOUNDS.write_text(json.dumps(stored))
    monkeypatch.setattr(gate, "ratios_of", lambda *_: {f"{ROW} / twin": 2.0, f"{ROW} / numpy": 2.0})
    for vendor, failed in (("Other", 0), ("A third", 1), (gate.VENDOR, 1)):
        monkeypatch.setattr(machine, "vendor", lambda vendor=vendor: vendor)
        assert gate.small([ROW]) == failed
    monkeypatch.setattr(machine, "vendor", lambda: "Other")
    assert gate.small([ROW], write=True) == 0
    written = json.loads(gate.BOUNDS.read_text())
    assert written.pop(f"{machine.simd()} Other") == {f"{ROW} / twin": 3.2, f"{ROW} / numpy": 3.2}
    assert written == {machine.simd(): stored[machine.simd()]}


def test_a_family_of_processors_has_bounds_of_its_own_before_its_vendors(monkeypatch, tmp_path):
    import machine

    monkeypatch.setattr(machine, "vendor", lambda: gate.VENDOR)
    key = f"{machine.simd()} {gate.VENDOR} 25"
    stored = {machine.simd(): {f"{ROW} / twin": 1.0, f"{ROW} / numpy": 1.0}, key: {f"{ROW} / twin": 3.0}}
    monkeypatch.setattr(gate, "BOUNDS", tmp_path / "gate.json")
    gate.BOUNDS.write_text(json.dumps(stored))
    monkeypatch.setattr(gate, "ratios_of", lambda *_: {f"{ROW} / twin": 2.0, f"{ROW} / numpy": 2.0})
    for family, failed in (("25", 0), ("26", 1)):
        monkeypatch.setattr(machine, "family", lambda family=family: family)
        assert gate.small([ROW]) == failed


def test_a_wrong_result_of_ours_fails_it(monkeypatch):
    import operators

    monkeypatch.setattr(operators, "measure_row", lambda *_: ({"opgraft": {"wrong": "differs"}}, 0))
    with pytest.raises(gate.Unusable, match="SwiGLU 1x11008, opgraft: .*differs"):
        gate.small([ROW])
