"""A recogniser of rendered faces to train swaps with, on one core; `heads_judge.py` is the one to measure with.

worldmodel train configs/heads_embedder.py

Its validation says how well people that it has never seen are told apart.
"""

from pathlib import Path

from worldmodel.datasets.heads.embedder_run import EmbedderRun
from worldmodel.datasets.heads.pairs import HeadPairs
from worldmodel.face.networks.embedder import EmbedderConfig
from worldmodel.objectives.contrastive import Contrastive
from worldmodel.optim import AdamW, Schedule


def run() -> EmbedderRun:
    return EmbedderRun(
        data=HeadPairs(batch=48, seed=0),
        model=EmbedderConfig(kind="residual", width=32),
        objective=Contrastive(temperature=0.1),
        optimizer=AdamW(lr=1e-3, weight_decay=1e-2),
        schedule=Schedule(shape="cosine", warmup=30, floor=0.02),
        out=Path("runs/heads_embedder"),
        seed=0,
        steps=500,
        ema=0.99,
        threads=1,
        log_every=10,
        save_every=100,
        validate_every=100,
        validate=4,
        sample_every=0,
    )
