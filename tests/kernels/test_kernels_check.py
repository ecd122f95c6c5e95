"""`kernels check` finds what is wrong: planted faults of every kind in plain functions, and what may not ship."""

import json
import re
from dataclasses import replace

import pytest
import torch

from worldmodel import cli
from worldmodel.kernels.check import report, worker
from worldmodel.kernels.check.correct import faults_of
from worldmodel.kernels.check.declare import Case, Configuration, OpChecks, padded
from worldmodel.kernels.check.report import Report, check

pytestmark = pytest.mark.needs("triton")


def case(run, **changes):
    """x^2 w of inputs that lie in NaN, right or not."""

    def make(rng, dtype):
        return [padded(torch.randn(5, 7, generator=rng).to(dtype)) for _ in range(2)]

    return Case("planted", make, run, lambda x, w: x * x * w, **{"gradients": (0, 1)} | changes)


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * x * w

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, w = ctx.saved_tensors
        return 2 * x * w * grad, x * grad  # the second should have x^2


def unwritten(x, w):
    out = torch.empty_like(x)
    out[:, :-1] = (x * x * w)[:, :-1]
    return out


def beside(x, w):
    """Reads one column too far."""
    wide = x.as_strided((5, 8), x.stride())
    return (wide[:, 1:] - wide[:, 1:] + x) * x * w


def test_what_is_right_has_no_faults():
    assert faults_of(case(lambda x, w: w * x * x)) == ()


@pytest.mark.parametrize(
    ("run", "fault"),
    [
        (lambda x, w: x * x * w + 1e-4, "output 0 is off by 0.0001"),
        (WrongGradient.apply, "gradient of input 1 is off by"),
        (lambda x, w: (x * x * w).double(), "output 0 is torch.float64"),
        (lambda x, w: (x * x * w)[:4], r"output 0 is torch.float32 \[4, 7\]"),
        (lambda x, w: x * x * w.half().float(), "output 0 is off by"),
        (beside, "output 0 is off by nan"),
    ],
)
def test_planted_faults_are_found(run, fault):
    faults = faults_of(case(run))
    assert any(re.search(fault, told) for told in faults), faults


def test_one_unlucky_draw_is_no_fault_but_bad_luck_in_all_is():
    draws = iter(range(100))

    def unlucky(times):
        return lambda x, w: x * x * w + (2e-6 if next(draws) // 2 in times else 0)  # two runs a draw

    one, every = case(unlucky((0,)), gradients=()), case(unlucky(range(100)), gradients=())
    assert faults_of(one) == () and next(draws) > 2
    assert "output 0 is off by" in faults_of(every)[0]


def test_unwritten_memory_shows():
    (fault,) = faults_of(case(unwritten, gradients=()))
    assert fault.startswith("output 0 is off by nan")


def test_a_result_that_changes_when_it_is_repeated_shows():
    times = iter((1.0, 1 + 2**-22))
    assert "output 0 differs when repeated" in faults_of(case(lambda x, w: x * x * w * next(times), gradients=()))


def test_exact_cases_allow_no_bit():
    exact = {"exact": True, "gradients": ()}
    assert faults_of(case(lambda x, w: x * x * w, **exact)) == ()
    assert faults_of(case(lambda x, w: x * x * w * (1 + 2**-22), **exact)) == (
        "output 0 is not bit for bit the reference's",
    )


def test_the_same_infinity_on_both_sides_is_no_error_and_another_one_is():
    def emptied(value):
        return lambda x, w: torch.where(x > 0, x * x * w, value)

    right = replace(case(emptied(-torch.inf)), reference=emptied(-torch.inf), gradients=())
    assert faults_of(right) == ()
    assert "output 0 is off by inf" in faults_of(replace(right, run=emptied(torch.inf)))[0]
    assert "output 0 is off by" in faults_of(replace(right, run=lambda x, w: emptied(-torch.inf)(x, w) + 1e-4))[0]


def test_what_is_the_same_machine_code_is_compiled_once():
    made = [Configuration(name, len, {"x": "*fp32"}, {"ROWS": rows}) for name, rows in (("a", 1), ("b", 2), ("c", 1))]
    checks = OpChecks("planted", tuple, lambda: made)
    assert len(list(worker._compile(checks, quick=False))) == 2 * len(made[0].archs)
    assert len(list(worker._compile(checks, quick=True))) == 2 * len(worker.QUICK_ARCHS)


def test_padded_inputs_lie_in_poison():
    x = padded(torch.arange(6.0).view(2, 3))
    assert torch.equal(x, torch.arange(6.0).view(2, 3)) and x.stride() == (6, 1)
    assert x.as_strided((1,), (1,), x.storage_offset() + 3).isnan().all()
    assert padded(torch.zeros(2, dtype=torch.int32)).as_strided((1,), (1,), 0).item() == 2**31 - 1


def test_what_may_not_ship_is_told():
    from worldmodel.kernels.check.compile import Compiled

    assert Compiled("k", 86, 128, 0, 99 * 1024, {"mma.sync": 8}, "mma.sync").faults == ()
    assert Compiled("k", 86, 255, 12).faults == ("spills 12 bytes",)
    assert Compiled("k", 89, 99, 0, 99 * 1024 + 1).faults == ("takes 101377 bytes of shared memory, of 101376",)
    assert Compiled("k", 80, 99, 0, 99 * 1024 + 1).faults == ()
    assert Compiled("k", 90, 99, 0, 0, {"mma.sync": 8}, "wgmma").faults == ("uses no wgmma",)
    assert Compiled("k", 90, error="no such type").faults == ("does not compile: no such type",)


@pytest.fixture
def found(monkeypatch):
    """The command with a report in place of the work."""

    class Running:
        def __init__(self, made):
            self.made = made

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def total(self):
            return 1

        def findings(self):
            return iter(())

        def report(self):
            return self.made

    def use(made):
        monkeypatch.setattr(report, "started", lambda quick, only: Running(made))

    return use


GOOD = {"op": "attention", "case": "41 queries", "faults": [], "seconds": 1.5}
SPILLED = {
    "op": "attention", "name": "forward 64", "arch": 86, "registers": 255, "spills": 8, "shared": 49152,
    "matrix": {"mma.sync": 32}, "faults": ["spills 8 bytes"], "seconds": 1.0,
}  # fmt: skip


def test_the_command_prints_a_table_and_fails_if_anything_is_wrong(found, capsys, tmp_path):
    found(Report((GOOD,), (SPILLED,)))
    assert (
        cli.main(["kernels", "check", "--quick", "--only", "attention", "--json", str(tmp_path / "new" / "check.json")])
        == 1
    )
    said = capsys.readouterr().out
    assert "FAILED attention: forward 64 sm86: spills 8 bytes" in said and "1 of 1 cases right" in said
    written = json.loads((tmp_path / "new" / "check.json").read_text())  # whose folder is made
    metrics, command = written["metrics"], written["command"]
    assert command == "kernels check --quick --only attention"
    assert {name: metric["value"] for name, metric in metrics.items()} == {"ops": 1, "failures": 1, "spills": 8}
    found(Report((GOOD,), (SPILLED | {"spills": 0, "faults": []},)))
    assert cli.main(["kernels", "check"]) == 0


def test_a_part_that_breaks_off_is_a_failure(tmp_path, monkeypatch):
    worker = tmp_path / "python"
    worker.write_text("""#!/bin/sh
echo '{"total": 2}'
[ "$3" = correct ] && echo '{"op": "attention", "case": "one", "faults": [], "seconds": 1}'
echo 'the last line' >&2
exit 3
""")
    worker.chmod(0o700)
    monkeypatch.setattr(report.sys, "executable", str(worker))
    found = check()
    assert found.failures == 2 and found.broken[0] == (
        "correct: ended with code 3 after 1 of 2 checks: the last line"
    )  # fmt: skip
    assert "FAILED compile: ended with code 3 after 0 of 2 checks" in found.table()


def test_an_unknown_op_is_told(capsys):
    assert cli.main(["kernels", "check", "--only", "attention", "atention"]) == 2
    assert "kernels check --only: no op atention; there are attention, " in capsys.readouterr().err
    assert cli.main(["kernels", "check", "--only"]) == 2
    assert "kernels check --only: no op was named; there are attention, " in capsys.readouterr().err


def test_the_command_line_knows_the_group(capsys):
    assert cli.main(["kernels"]) == 0 and "kernels check" in capsys.readouterr().out
    assert cli.main(["kernels", "chekc"]) == 2 and "no command 'kernels chekc'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_kernels_of_attention_are_right_and_ship():
    found = check(quick=True, ops=("attention", "prefix_attention"))
    assert found.failures == 0, found.table()
    assert found.spills == 0 and found.ops == 2 and len(found.compiled) == 6 and len(found.cases) >= 14
