"""A first run: the maze at 32 x 32 pixels, without an autoencoder, minutes on a CPU.

worldmodel collect maze --episodes 64 --frames 160 --size 32 --out runs/data/maze
worldmodel encode runs/data/maze --tokenizer pixels --out runs/data/maze_latents
worldmodel train configs/maze.py
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
        data=LatentClips(path=(Path("runs/data/maze_latents"),), length=16, batch=8, validation=0.1),
        model=DiTConfig(channels=3, size=(32, 32), patch=8, chunk=4, dim=128, depth=4, heads=4, hidden=512, actions=2),
        objective=FlowMatching(chunk_noise="teacher", context_noise=0.2),
        optimizer=Muon(lr=2e-3),
        schedule=Schedule(warmup=50),
        stream=StreamConfig(memory=WindowConfig(ring=12), sampler=Euler(steps=4)),
        out=Path("runs/maze"),
        steps=1000,
        ema=0.99,
        threads=1,
    )
