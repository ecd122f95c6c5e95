"""The shipped world's autoencoder: 64 x 64 pixels to 8 x 8 latents of 8 channels.

worldmodel collect doom --episodes 240 --out runs/data/doom
worldmodel encode runs/data/doom --tokenizer pixels --out runs/data/doom_pixels
worldmodel train configs/doom_autoencoder.py
"""

from pathlib import Path

from worldmodel.datasets.latents import LatentClips
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.objectives.reconstruction import Reconstruction
from worldmodel.optim import AdamW, Schedule
from worldmodel.run import Run


def run() -> Run:
    return Run(
        data=LatentClips(path=(Path("runs/data/doom_pixels"),), length=1, batch=16, validation=0.05),
        model=AutoencoderConfig(channels=8),
        objective=Reconstruction(),
        optimizer=AdamW(lr=7e-4, betas=(0.9, 0.99), weight_decay=1e-4),
        schedule=Schedule(shape="cosine", warmup=200),
        out=Path("runs/doom_autoencoder"),
        steps=6000,
        ema=0.998,
        threads=1,
        log_every=50,
        save_every=500,
        validate_every=500,
        sample_every=2000,
    )
