"""The autoencoder of `configs/recall.py`: 32 x 32 pixels of many mazes to 4 x 4 latents of 8 channels.

worldmodel collect maze/small --policy revisit --size 32 --episodes 240 --frames 400 --out runs/data/recall
worldmodel encode runs/data/recall --tokenizer pixels --out runs/data/recall_pixels
worldmodel train configs/recall_autoencoder.py
"""

from dataclasses import replace
from pathlib import Path

from worldmodel.run import Run, load


def run() -> Run:
    doom = load(Path(__file__).with_name("doom_autoencoder.py"))
    return replace(
        doom,
        data=replace(doom.data, path=(Path("runs/data/recall_pixels"),), batch=48),
        out=Path("runs/recall_autoencoder"),
        steps=5000,
    )
