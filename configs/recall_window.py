"""The base of `configs/recall.py` with a sink of 2 frames and a window of 22.

worldmodel train configs/recall_window.py --out runs/recall_window
"""

from dataclasses import replace
from pathlib import Path

from worldmodel.memory import WindowConfig
from worldmodel.run import Run, load


def run() -> Run:
    recall = load(Path(__file__).with_name("recall.py"))
    return replace(
        recall,
        init="runs/recall",
        data=replace(recall.data, batch=4, seed=1),
        schedule=replace(recall.schedule, warmup=10),
        stream=replace(recall.stream, memory=WindowConfig(sink=2, ring=22)),
        out=Path("runs/recall_window"),
        steps=80,
        ema=0.95,
        compile=False,
        save_every=80,
        validate_every=80,
    )
