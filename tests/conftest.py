"""What must hold before anything heavy is imported, and the `needs` marker."""

import os

# No network, no screen, one thread: tiny models run several times faster with one.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TOKENIZERS_PARALLELISM="false",
    OMP_NUM_THREADS="1",
    SVT_LOG="1",
)

from worldmodel import capabilities

os.environ.update(capabilities.headless())

import hypothesis
import pytest
import torch

torch.set_num_threads(1)

# The same examples everywhere, so that a red test is the change's own doing. New ones: --hypothesis-profile search.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("search", deadline=None, max_examples=500)
hypothesis.settings.load_profile("same")


def needed(item: pytest.Item) -> list[str]:
    """The capabilities that a test names; `browser` stands for Chromium."""
    names = [name for mark in item.iter_markers("needs") for name in mark.args]
    return ["chromium", *names] if item.get_closest_marker("browser") else names


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in needed(item):
            if name not in capabilities.CAPABILITIES:
                raise pytest.UsageError(
                    f"{item.nodeid}: needs({name!r}), known are {sorted(capabilities.CAPABILITIES)}"
                )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in needed(item):
        found = capabilities.check(name)
        if found.state != "ok":
            pytest.skip(found.reason)
