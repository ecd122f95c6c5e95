"""The autoencoder of `configs/heads_swap.py`: regions of 64 x 64 pixels to 16 x 16 latents of 8 channels, on one core.

worldmodel train configs/heads_autoencoder.py
"""

from pathlib import Path

from worldmodel.datasets.heads.autoencoder_run import RegionAutoencoderRun
from worldmodel.datasets.heads.swaps import HeadSwaps
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.optim import AdamW, Schedule


def run() -> RegionAutoencoderRun:
    return RegionAutoencoderRun(
        data=HeadSwaps(size=64, length=2, batch=8, references=1, seed=0),
        model=AutoencoderConfig(channels=8, widths=(32, 64), blocks=(1, 2)),
        optimizer=AdamW(lr=1e-3, betas=(0.9, 0.99), weight_decay=1e-4),
        schedule=Schedule(shape="cosine", warmup=50, floor=0.02),
        out=Path("runs/heads_autoencoder"),
        seed=0,
        steps=1500,
        ema=0.995,
        threads=1,
        log_every=10,
        save_every=250,
        validate_every=250,
        validate=4,
        sample_every=0,
    )
