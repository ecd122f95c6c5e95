"""A recogniser of rendered faces to measure swaps with: another architecture and seed than the one that
trains them (`heads_embedder.py`).

worldmodel train configs/heads_judge.py
"""

from pathlib import Path

from worldmodel.datasets.heads.embedder_run import EmbedderRun
from worldmodel.datasets.heads.pairs import HeadPairs
from worldmodel.face.networks.embedder import EmbedderConfig
from worldmodel.objectives.contrastive import Contrastive
from worldmodel.optim import AdamW, Schedule


def run() -> EmbedderRun:
    return EmbedderRun(
        data=HeadPairs(batch=48, seed=1),
        model=EmbedderConfig(kind="mixer", width=96),
        objective=Contrastive(temperature=0.1),
        optimizer=AdamW(lr=1e-3, weight_decay=1e-2),
        schedule=Schedule(shape="cosine", warmup=30, floor=0.02),
        out=Path("runs/heads_judge"),
        seed=1,
        steps=500,
        ema=0.99,
        threads=1,
        log_every=10,
        save_every=100,
        validate_every=100,
        validate=4,
        sample_every=0,
    )
