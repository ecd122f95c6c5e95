"""A world that rewards memory: mazes whose views come back after up to 128 frames, 4 tokens a frame, one core.

worldmodel collect maze/small --policy revisit --size 32 --episodes 240 --frames 400 --pose 16 8 4 2 \
    --out runs/data/recall
worldmodel encode runs/data/recall --tokenizer pixels --out runs/data/recall_pixels
worldmodel train configs/recall_autoencoder.py
worldmodel encode runs/data/recall --tokenizer runs/recall_autoencoder/model --out runs/data/recall_latents
worldmodel train configs/recall.py

Every episode is another maze of four rooms. Controls hold the pose that an action leads to, so that a model of this
size can find a view again. This is the base: it remembers all of a clip of 96 frames. `recall_window.py`,
`recall_slow_fast.py` and `recall_lact.py` teach it to live with 24 frames' bytes, each in its own way.
"""

from pathlib import Path

from worldmodel.datasets.latents import LatentClips
from worldmodel.memory import FullConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.flow_matching import FlowMatching
from worldmodel.optim import Muon, Schedule
from worldmodel.run import Run
from worldmodel.sampler import Euler


def run() -> Run:
    return Run(
        data=LatentClips(path=(Path("runs/data/recall_latents"),), length=96, batch=8, validation=0.05),
        model=DiTConfig(
            channels=8, size=(4, 4), chunk=2, dim=160, depth=4, heads=5, hidden=640, actions=24, rank=16, anchor=True
        ),
        objective=FlowMatching(chunk_noise="teacher", context_noise=0.1, mean=0.7, drop=0.0),
        optimizer=Muon(lr=2e-3),
        schedule=Schedule(shape="cosine", warmup=50, floor=0.02),
        stream=StreamConfig(memory=FullConfig(), sampler=Euler(steps=4)),
        out=Path("runs/recall"),
        steps=600,
        ema=0.995,
        threads=1,
        compile=True,
        log_every=10,
        save_every=600,
        validate_every=100,
        validate=2,
        sample_every=0,
    )
