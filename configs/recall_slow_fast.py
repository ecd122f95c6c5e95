"""The base of `configs/recall.py` with a slow-fast memory of the same bytes as `recall_window.py`.

worldmodel train configs/recall_slow_fast.py

A frame of eight may become a slow one, so that 14 of them reach back 112 frames or more.
"""

from dataclasses import replace
from pathlib import Path

from worldmodel.memory import SlowFastConfig
from worldmodel.run import Run, load


def run() -> Run:
    window = load(Path(__file__).with_name("recall_window.py"))
    memory = SlowFastConfig(sink=2, slow=14, fast=8, every=8, surprise=0.95)
    return replace(window, stream=replace(window.stream, memory=memory), out=Path("runs/recall_slow_fast"))
