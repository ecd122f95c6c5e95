"""The smallest world in which a model drifts: one maze of four rooms, 64 x 64 pixels, half an hour on one core.

worldmodel collect maze/home --episodes 160 --out runs/data/home
worldmodel encode runs/data/home --tokenizer pixels --out runs/data/home_pixels
worldmodel train configs/home_autoencoder.py
worldmodel encode runs/data/home --tokenizer runs/home_autoencoder/model --out runs/data/home_latents
worldmodel train configs/home.py
"""

from pathlib import Path

from worldmodel.datasets.latents import LatentClips
from worldmodel.memory import WindowConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.flow_matching import FlowMatching
from worldmodel.optim import Muon, Schedule
from worldmodel.run import Run
from worldmodel.sampler import Euler


def run() -> Run:
    return Run(
        data=LatentClips(path=(Path("runs/data/home_latents"),), length=12, batch=16, validation=0.05),
        model=DiTConfig(
            channels=8, size=(8, 8), chunk=2, dim=160, depth=4, heads=5, hidden=640, actions=2, rank=16, anchor=True
        ),
        objective=FlowMatching(chunk_noise="teacher", context_noise=0.2, mean=0.7, drop=0.0, context=1),
        optimizer=Muon(lr=1.5e-3),
        schedule=Schedule(shape="cosine", warmup=100, floor=0.02),
        stream=StreamConfig(memory=WindowConfig(sink=0, ring=10), sampler=Euler(steps=4)),
        out=Path("runs/home"),
        steps=2400,
        ema=0.998,
        threads=1,
        compile=True,
        log_every=20,
        save_every=200,
        validate_every=400,
        sample_every=0,
    )
