"""`configs/recall.py` with fast weights of half the bytes, updated once a chunk, beside a window of the other half.

worldmodel train configs/recall_lact.py
"""

from dataclasses import replace
from pathlib import Path

from worldmodel.memory import LactConfig
from worldmodel.models.fast_layer import FastConfig
from worldmodel.run import Run, load


def run() -> Run:
    recall = load(Path(__file__).with_name("recall.py"))
    return replace(
        recall,
        model=replace(recall.model, fast=FastConfig(groups=5)),
        stream=replace(recall.stream, memory=LactConfig(ring=12)),
        out=Path("runs/recall_lact"),
    )
