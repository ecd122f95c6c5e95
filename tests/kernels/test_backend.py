"""The choice of a backend: by reasons, visibly, and never in mid-stream."""

import logging
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

from worldmodel.kernels.backend import (
    Backend,
    BackendError,
    Fallback,
    Op,
    fallbacks,
    forget_fallbacks,
    setting,
    use,
    using,
)


@dataclass(frozen=True, slots=True)
class Doubled:
    x: torch.Tensor

    @property
    def device(self) -> torch.device:
        return self.x.device


def broken(call: Doubled) -> torch.Tensor:
    raise ZeroDivisionError("while running")


ODD = "an odd number of rows"
DOUBLE = Op(
    "double",
    (
        Backend("triton", lambda c: () if c.x.is_cuda else ("no GPU",), broken, ("cuda",)),
        Backend("flex", lambda c: (ODD,) if len(c.x) % 2 else (), lambda c: c.x * 2, ("cuda", "cpu")),
        Backend("sdpa", lambda c: (), broken),
        Backend("reference", lambda c: (), lambda c: c.x + c.x + 0),
    ),
)


@pytest.fixture(autouse=True)
def fresh():
    forget_fallbacks()
    use("auto")
    yield
    forget_fallbacks()
    use("auto")


def chosen(rows: int, name: str | None = None) -> str:
    return DOUBLE.choose(Doubled(torch.ones(rows)), name).name


def test_auto_takes_the_first_that_can_on_this_device_and_counts_what_it_passes_over(caplog):
    with caplog.at_level(logging.WARNING):
        assert chosen(2) == "flex"  # triton is for another device: that is no fallback
        assert not fallbacks() and not caplog.records
        assert [chosen(3), chosen(5), chosen(2)] == ["reference", "reference", "flex"]
    assert fallbacks() == {Fallback("double", "flex", ODD): 2}
    assert [record.getMessage() for record in caplog.records] == [f"double: the backend flex is not used: {ODD}"]


def test_a_named_backend_serves_or_raises_with_its_reasons():
    with using("reference"):
        assert setting() == "reference" and chosen(2) == "reference"
    assert setting() == "auto"
    with using("triton"), pytest.raises(BackendError, match="double: the backend triton cannot: no GPU"):
        DOUBLE(Doubled(torch.ones(2)))
    with pytest.raises(BackendError, match=ODD):
        chosen(3, "flex")
    assert not fallbacks()


def test_an_op_without_the_named_backend_goes_by_auto():
    assert chosen(2, "xformers") == "flex"


def test_an_exception_in_a_backend_is_not_followed_by_another_one():
    with using("sdpa"), pytest.raises(ZeroDivisionError, match="while running"):
        DOUBLE(Doubled(torch.ones(2)))
    assert not fallbacks()


def test_the_setting_survives_an_exception_and_rejects_unknown_names():
    with pytest.raises(ZeroDivisionError), using("sdpa"):
        raise ZeroDivisionError
    assert setting() == "auto"
    with pytest.raises(BackendError, match="no backend 'cuda'; there are auto, triton"):
        use("cuda")


def test_explain_names_the_reasons_of_every_backend():
    missing = ("double has no such backend",)
    assert DOUBLE.explain(Doubled(torch.ones(3))) == {
        "triton": ("no GPU",), "xformers": missing, "flex": (ODD,), "sdpa": (), "grid_sample": missing,
        "reference": (),
    }  # fmt: skip


def test_where_nobody_can_all_reasons_are_in_the_error():
    nobody = Op("nothing", tuple(Backend(name, lambda c: ("never",), broken) for name in ("triton", "reference")))
    with pytest.raises(BackendError, match="nothing: no backend can: triton: never; reference: never"):
        nobody(Doubled(torch.ones(2)))


def test_compiled_code_chooses_while_it_compiles_and_follows_the_setting(caplog):
    compiled = torch.compile(lambda x: DOUBLE(Doubled(x)) + 1, fullgraph=True, backend="eager", dynamic=False)
    with caplog.at_level(logging.WARNING, logger="worldmodel"):
        for _ in range(3):
            torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 3.0))
            torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 3.0))
    assert fallbacks() == {Fallback("double", "flex", ODD): 1} and len(caplog.records) == 1
    with using("triton"), pytest.raises(Exception, match="no GPU"):
        compiled(torch.ones(2))


def test_choosing_does_not_import_the_compiler() -> None:
    """torch._dynamo takes seconds, and most commands compile nothing."""
    code = "import sys, worldmodel.kernels.attention; print('torch._dynamo' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said == "False\n"
