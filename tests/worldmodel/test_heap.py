"""Large tensors that come and go keep their pages."""

import platform
import subprocess
import sys

COUNT = """
import resource, torch
from worldmodel.heap import keep_freed_memory
{setting}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.zeros(16 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(min(faults() for _ in range(4)))  # a small block may once lie where the large ones were
"""
PAGES = 8 * (64 << 20) // 4096  # of all eight tensors of 64 MiB


def _faults(setting: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", COUNT.format(setting=setting)], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def test_the_pages_of_a_large_tensor_are_not_asked_for_again() -> None:
    limit = PAGES / 100 if platform.libc_ver()[0] == "glibc" else PAGES  # nothing is done elsewhere
    assert _faults("keep_freed_memory()") < limit
