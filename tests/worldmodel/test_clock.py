"""Time is read when the device is done."""

import time

import pytest
import torch

from worldmodel.clock import clock


def test_on_a_cpu_it_is_the_counter(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: 12.5)
    assert clock(torch.device("cpu")) == 12.5


def test_a_gpu_is_waited_for_before_time_is_read(monkeypatch):
    order = []
    monkeypatch.setattr(torch.cuda, "synchronize", order.append)
    monkeypatch.setattr(time, "perf_counter", lambda: order.append("read") or 1.0)
    device = torch.device("cuda", 1)
    clock(device)
    assert order == [device, "read"]


@pytest.mark.needs("cuda")
def test_a_long_kernel_counts():
    a = torch.ones(8192, 8192, device="cuda")
    begin = clock(a.device)
    for _ in range(20):
        a = a @ a * 1e-4
    launched = time.perf_counter() - begin
    assert clock(a.device) - begin > launched
