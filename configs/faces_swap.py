"""The generator of `configs/heads_swap.py`, taught the few people of real clips: one person's face on another's, on one
core within an hour.

worldmodel face gather CLIPS --size 64 --out runs/data/faces
worldmodel face reverse runs/data/faces
worldmodel train configs/heads_swap.py
worldmodel train configs/faces_swap.py

CLIPS is a folder with a folder of videos per person. Who is taught can be the reference and the target; nobody is held
out, as there are too few. There is no loss of identity: the recogniser of rendered heads has never seen a photograph.
"""

from dataclasses import replace
from pathlib import Path

from worldmodel.datasets.faces.clips import FaceClips
from worldmodel.datasets.heads.swap_run import SwapRun
from worldmodel.run import load_training


def run() -> SwapRun:
    heads = load_training(Path(__file__).with_name("heads_swap.py"))
    assert isinstance(heads, SwapRun)
    return replace(
        heads,
        data=FaceClips(path=Path("runs/data/faces"), length=4, batch=4, reversed=0.3, validation=0.0),
        objective=replace(heads.objective, identity=None),
        optimizer=replace(heads.optimizer, lr=8e-4),
        init=heads.out,
        out=Path("runs/faces_swap"),
        steps=1500,
        validate=0,
        sample_every=500,
    )
