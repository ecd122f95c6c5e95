"""The autoencoder of `configs/home.py`: 64 x 64 pixels of one maze to 8 x 8 latents of 8 channels.

worldmodel collect maze/home --episodes 160 --out runs/data/home
worldmodel encode runs/data/home --tokenizer pixels --out runs/data/home_pixels
worldmodel train configs/home_autoencoder.py
"""

from dataclasses import replace
from pathlib import Path

from worldmodel.run import Run, load


def run() -> Run:
    doom = load(Path(__file__).with_name("doom_autoencoder.py"))
    return replace(
        doom,
        data=replace(doom.data, path=(Path("runs/data/home_pixels"),)),
        out=Path("runs/home_autoencoder"),
        steps=4000,
    )
