"""Only in a process that interprets: test_interpreted.py starts one."""

import pytest

from worldmodel.kernels import triton_needs


def pytest_ignore_collect(collection_path) -> bool | None:
    return True if collection_path.suffix == ".py" and not triton_needs.interpreted() else None


@pytest.fixture
def rng():
    import torch

    return torch.Generator().manual_seed(0)
