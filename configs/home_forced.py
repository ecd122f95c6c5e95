"""Frechet Forcing in the smallest world in which a model drifts: `configs/home.py` goes on on its own rollouts.

worldmodel train configs/home_forced.py

It starts from what `configs/home.py` has made (runs/home/model) and rolls out with that recipe's sampler and memory. A
clip of 24 latent frames is 12 chunks: 1 real one, 6 generated ones (9 from step 100 on), 1 more real one, and the one
that the anchor learns. Its term `reality` looks through the autoencoder's hidden features: judge in another encoder.
"""

from dataclasses import replace
from pathlib import Path

from worldmodel.frechet.population import Queue
from worldmodel.objectives.frechet_forcing import FrechetForcing
from worldmodel.objectives.own_rollouts import OwnRollouts
from worldmodel.optim import AdamW, Schedule
from worldmodel.run import Run, load


def run() -> Run:
    home = load(Path(__file__).with_name("home.py"))
    return replace(
        home,
        data=replace(home.data, length=24, batch=8),
        objective=FrechetForcing(
            rollouts=OwnRollouts(prefix=1, lengths=((0, 6), (100, 9))),
            encoders=("autoencoder_hidden",),
            population=Queue(capacity=1024),
            mean=0.7,
            drop=0.0,
        ),
        optimizer=AdamW(lr=2e-4),
        schedule=Schedule(shape="cosine", warmup=10, floor=0.1),
        init="runs/home/model",
        out=Path("runs/home_forced"),
        steps=300,
        ema=0.97,
        compile=False,
        log_every=10,
        save_every=50,
        validate_every=100,
        validate=2,
    )
