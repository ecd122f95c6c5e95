"""The base of `configs/recall.py` with new fast weights of half the bytes, updated once a chunk, and a window of 12.

worldmodel train configs/recall_lact.py
"""

from dataclasses import replace
from pathlib import Path

from worldmodel.memory import LactConfig
from worldmodel.models.fast_layer import FastConfig
from worldmodel.run import Run, load


def run() -> Run:
    window = load(Path(__file__).with_name("recall_window.py"))
    return replace(
        window,
        model=replace(window.model, fast=FastConfig(groups=5)),
        stream=replace(window.stream, memory=LactConfig(ring=12)),
        out=Path("runs/recall_lact"),
    )
