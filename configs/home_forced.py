"""Frechet Forcing in the smallest world in which a model drifts: `configs/home.py` goes on on its own rollouts.

worldmodel train configs/home_forced.py

It starts from what `configs/home.py` has made (runs/home/model) and rolls out with that recipe's sampler and memory. A
clip of 42 latent frames is 21 chunks: 1 real one, up to 12 generated ones without loss, 6 that the distances see, 1
more real one, and the one that the anchor learns. Gradients flow through all calls of the sampler. The term `reality`
looks through the autoencoder's hidden features and through lite0: judge in a third encoder. Small steps and a queue of
a few batches matter (docs/log.md). docs/results/frechet_forcing.md has what came out.
"""

from dataclasses import replace
from pathlib import Path

from worldmodel.differentiable import Gradients
from worldmodel.frechet.population import Queue
from worldmodel.objectives.frechet_forcing import FrechetForcing
from worldmodel.objectives.own_rollouts import OwnRollouts
from worldmodel.optim import AdamW, Schedule
from worldmodel.run import Run, load


def run() -> Run:
    home = load(Path(__file__).with_name("home.py"))
    return replace(
        home,
        data=replace(home.data, length=42, batch=8),
        objective=FrechetForcing(
            rollouts=OwnRollouts(prefix=1, lead=12, lengths=((0, 6),), gradients=Gradients(policy="all")),
            context=0.1,
            reality=0.1,
            encoders=("autoencoder_hidden", "lite0"),
            stride=3,
            population=Queue(capacity=384),
            mean=0.7,
            drop=0.0,
        ),
        optimizer=AdamW(lr=6e-5),
        schedule=Schedule(shape="cosine", warmup=10, floor=0.1),
        init="runs/home/model",
        out=Path("runs/home_forced"),
        steps=240,
        ema=0.95,
        compile=False,
        log_every=10,
        save_every=40,
        validate_every=80,
        validate=2,
    )
