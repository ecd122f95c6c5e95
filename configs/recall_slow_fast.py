"""`configs/recall.py` with a slow-fast memory of the same bytes: a sink, surprising frames, the newest ones.

worldmodel train configs/recall_slow_fast.py
"""

from dataclasses import replace
from pathlib import Path

from worldmodel.memory import SlowFastConfig
from worldmodel.run import Run, load


def run() -> Run:
    recall = load(Path(__file__).with_name("recall.py"))
    memory = SlowFastConfig(sink=2, slow=14, fast=8, every=4, surprise=0.95)
    return replace(recall, stream=replace(recall.stream, memory=memory), out=Path("runs/recall_slow_fast"))
