"""Frechet Forcing on the shipped world's recipe: the trained doom model goes on learning on its own rollouts.

worldmodel train configs/doom_forced.py
worldmodel evaluate drift runs/doom_forced --data runs/data/doom_test --encoders autoencoder_hidden --out reports

It starts from what `configs/doom.py` has made (runs/doom/model) and rolls out with that recipe's sampler and memory. A
clip of 24 latent frames is 12 chunks: 1 real one, 6 generated ones (9 from step 300 on), 1 more real one, and the one
that the anchor learns. Before the first step it takes its reference from real clips and fills the population of its
distances with rollouts. Its term `reality` looks through the encoder lite0: judge in another one. No result of it is
published yet.
"""

from dataclasses import replace
from pathlib import Path

from worldmodel.objectives.frechet_forcing import FrechetForcing
from worldmodel.objectives.own_rollouts import OwnRollouts
from worldmodel.optim import AdamW
from worldmodel.run import Run, load


def run() -> Run:
    doom = load(Path(__file__).with_name("doom.py"))
    return replace(
        doom,
        data=replace(doom.data, length=24),
        objective=FrechetForcing(rollouts=OwnRollouts(prefix=1, lengths=((0, 6), (300, 9)))),
        optimizer=AdamW(lr=1e-4),
        init="runs/doom/model",
        out=Path("runs/doom_forced"),
        steps=600,
        save_every=50,
        validate_every=100,
        sample_every=200,
    )
