"""A face swap generator on rendered heads, by flow matching with the noise-gated Joint Rec-ID loss.

worldmodel train configs/heads_embedder.py
worldmodel train configs/heads_autoencoder.py
worldmodel train configs/heads_swap.py
worldmodel swap VIDEO --method runs/heads_swap --reference FACE --consent FILE --out OUT

Regions of 64 pixels are 16 x 16 latents, whose decoder joins what the model's patches of 8 pixels make. Flow times lie
nearer to noise, where what is given must be learned to be used. `configs/heads_swap_rollouts.py` goes on from it on its
own rollouts.
"""

from pathlib import Path

from worldmodel.datasets.heads.swap_run import SwapRun
from worldmodel.datasets.heads.swaps import HeadSwaps
from worldmodel.face.region_codec import condition_channels
from worldmodel.memory import WindowConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.joint_rec_id import JointRecId
from worldmodel.objectives.swap_matching import SwapMatching
from worldmodel.optim import Muon, Schedule
from worldmodel.sampler import Euler


def run() -> SwapRun:
    return SwapRun(
        data=HeadSwaps(size=64, length=4, batch=4, references=1, seed=0),
        tokenizer="runs/heads_autoencoder",
        model=DiTConfig(
            channels=8,
            size=(16, 16),
            condition=condition_channels(8, 4),
            chunk=2,
            dim=192,
            depth=4,
            heads=6,
            hidden=768,
        ),
        objective=SwapMatching(identity=JointRecId(embedder=Path("runs/heads_embedder")), mean=0.8),
        stream=StreamConfig(memory=WindowConfig(sink=1, ring=4), sampler=Euler(steps=4)),
        optimizer=Muon(lr=2e-3),
        schedule=Schedule(shape="cosine", warmup=50, floor=0.05),
        out=Path("runs/heads_swap"),
        seed=0,
        steps=1500,
        ema=0.995,
        threads=1,
        log_every=10,
        save_every=250,
        validate_every=250,
        validate=4,
        sample_every=1000,
    )
