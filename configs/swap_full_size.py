"""A face swap of the size that runs at 20 frames/s on a large GPU: a transformer like Wan's 1.3 B on regions of 384.

worldmodel estimate configs/swap_full_size.py --stream 20 --tflops 80
worldmodel face gather VIDEOS --size 384 --out data/faces
worldmodel train configs/swap_full_size.py

Pictures go one by one through Stable Diffusion's autoencoder, which makes 48 x 48 latents of a region, and patches of 4
make 144 tokens of these. `--model.size 32 32` and `64 64` are regions of 256 and 512 pixels, `60 104` a whole picture
of 832 x 480. It has not been trained: that needs a GPU and the faces of many people.
"""

from pathlib import Path

from worldmodel.datasets.faces.clips import FaceClips
from worldmodel.datasets.heads.swap_run import SwapRun
from worldmodel.face.region_codec import condition_channels
from worldmodel.memory import WindowConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.swap_matching import SwapMatching
from worldmodel.optim import AdamW, Schedule
from worldmodel.sampler import FewStep


def run() -> SwapRun:
    return SwapRun(
        data=FaceClips(path=Path("data/faces"), length=16, batch=8),
        tokenizer="stabilityai/sd-vae-ft-mse",
        model=DiTConfig(
            channels=4,
            size=(48, 48),
            condition=condition_channels(4, 8),
            patch=4,
            chunk=4,
            dim=1536,
            depth=30,
            heads=12,
            hidden=8960,
        ),
        objective=SwapMatching(),
        stream=StreamConfig(memory=WindowConfig(sink=1, ring=12), sampler=FewStep()),
        optimizer=AdamW(lr=1e-4, weight_decay=1e-2),
        schedule=Schedule(shape="cosine", warmup=500, floor=0.05),
        out=Path("runs/swap_full_size"),
        steps=100_000,
        micro=8,
        ema=0.999,
        precision="bf16",
    )
