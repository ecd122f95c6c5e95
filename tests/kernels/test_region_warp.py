"""A pasted patch by the library's sampling against the reference, and what both must leave alone."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worldmodel.kernels.backend import BackendError
from worldmodel.kernels.region_warp import REGION_WARP, Paste


def drawn(seed: int, frame: tuple[int, int], patch: tuple[int, int], angle: float, zoom: float) -> Paste:
    rng = torch.Generator().manual_seed(seed)
    c, s = zoom * math.cos(angle), zoom * math.sin(angle)
    inverse = torch.tensor([[[c, -s, patch[1] / 2 - c * 9 + s * 7], [s, c, patch[0] / 2 - s * 9 - c * 7]]])
    return Paste(
        torch.randint(0, 256, (1, *frame, 3), generator=rng, dtype=torch.uint8),
        torch.rand(1, *patch, 3, generator=rng) * 300 - 20,
        (torch.rand(1, *patch, generator=rng) * 1.5 - 0.25).clamp(0, 1),
        inverse,
        torch.randint(-3, 9, (1, 2), generator=rng).int(),
        (14, 17),
    )


def pasted(call: Paste, backend: str) -> torch.Tensor:
    frame = call.frame.clone()
    REGION_WARP(Paste(frame, call.patch, call.mask, call.inverse, call.corner, call.size), backend)
    return frame


@given(
    seed=st.integers(0, 2**31), frame=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    patch=st.tuples(st.integers(1, 20), st.integers(1, 20)), angle=st.floats(-3, 3), zoom=st.floats(0.1, 4),
)  # fmt: skip
def test_both_paste_the_same(seed, frame, patch, angle, zoom) -> None:
    """Within the rounding of half a level, which few pixels meet."""
    call = drawn(seed, frame, patch, angle, zoom)
    a, b = (pasted(call, backend).int() for backend in ("grid_sample", "reference"))
    assert (a - b).abs().max() <= 1
    assert (a != b).sum() <= max(1, a.numel() // 500)


def test_whole_pixels_are_exact() -> None:
    call = drawn(3, (20, 24), (16, 16), 0.0, 1.0)
    assert torch.equal(pasted(call, "grid_sample"), pasted(call, "reference"))


def test_what_is_not_seen_keeps_its_bits_beside_what_is_not_a_number() -> None:
    call = drawn(5, (20, 24), (16, 16), 0.4, 0.8)
    hidden = call.mask.clone()
    hidden[:, :9] = 0
    patch = call.patch.clone()
    patch[:, :7] = torch.nan  # two lines from what is seen
    made = [
        pasted(Paste(call.frame, patch, hidden, call.inverse, call.corner, call.size), b)
        for b in ("grid_sample", "reference")
    ]
    assert (made[0].int() - made[1].int()).abs().max() <= 1 and (made[0] != call.frame).any()
    nothing = Paste(call.frame, patch, hidden * 0, call.inverse, call.corner, call.size)
    assert torch.equal(pasted(nothing, "grid_sample"), call.frame)


def test_a_cpu_takes_it_unless_types_are_others() -> None:
    call = drawn(5, (20, 24), (16, 16), 0.4, 0.8)
    assert REGION_WARP.choose(call, "auto").name == "grid_sample"
    halves = Paste(call.frame, call.patch.half(), call.mask, call.inverse, call.corner, call.size)
    assert REGION_WARP.choose(halves, "auto").name == "reference"
    with pytest.raises(BackendError, match=r"grid_sample cannot: patch is torch.float16, not torch.float32"):
        REGION_WARP.choose(halves, "grid_sample")
