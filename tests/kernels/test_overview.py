"""What `doctor` tells of the kernels on a device."""

import torch

from worldmodel.kernels import backend, triton_needs
from worldmodel.kernels.overview import overview


def test_on_a_cpu_triton_has_its_reason_and_libraries_are_named():
    before = backend.fallbacks()
    attention, rest, paste = overview(torch.device("cpu"))
    assert attention.ops == ("attention",) and attention.backend == "sdpa"
    (why,) = triton_needs.reasons(torch.device("cpu"))
    assert attention.others["triton"] == rest.others["triton"] == why
    assert attention.others["flex"] == "only by name" and "xformers" in attention.others
    assert rest.backend == "reference" and rest.others.keys() == {"triton"}
    assert paste.ops == ("region_warp",) and paste.backend == "grid_sample"
    assert {"modulate", "gated_residual", "qk_norm_rope", "write_ring", "euler", "renoise", "normal"} <= {*rest.ops}
    assert backend.fallbacks() == before


def test_where_triton_can_auto_takes_it_for_everything(monkeypatch):
    monkeypatch.setattr(triton_needs, "reasons", lambda device: ())
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        found = overview(torch.device("cuda"))
    assert {each.backend for each in found} == {"triton"} and sum(len(each.ops) for each in found) == 11
