"""The shipped world: ViZDoom's my_way_home, 64 x 64 pixels, 24 frames per second, on a CPU.

worldmodel collect doom --episodes 240 --out runs/data/doom
worldmodel collect doom --episodes 480 --seed 240 --out runs/data/doom_more
worldmodel encode runs/data/doom --tokenizer pixels --out runs/data/doom_pixels
worldmodel train configs/doom_autoencoder.py
worldmodel encode runs/data/doom --tokenizer runs/doom_autoencoder/model --out runs/data/doom_latents
worldmodel encode runs/data/doom_more --tokenizer runs/doom_autoencoder/model --out runs/data/doom_more_latents
worldmodel train configs/doom.py --data.path runs/data/doom_latents --steps 3000 --out runs/doom_first
worldmodel train configs/doom.py --init runs/doom_first/model

The second training goes on from the weights of the first with three times the data. Processes share a step:
`torchrun --nproc-per-node 2 -m worldmodel train ...` takes half the time on two cores.
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
        data=LatentClips(
            path=(Path("runs/data/doom_latents"), Path("runs/data/doom_more_latents")),
            length=12,
            batch=16,
            validation=0.05,
        ),
        model=DiTConfig(
            channels=8, size=(8, 8), chunk=2, dim=192, depth=6, heads=6, hidden=768, actions=3, rank=16, anchor=True
        ),
        objective=FlowMatching(chunk_noise="teacher", context_noise=0.3, mean=0.7, drop=0.1, context=1),
        optimizer=Muon(lr=1.5e-3),
        schedule=Schedule(shape="cosine", warmup=100, floor=0.02),
        stream=StreamConfig(memory=WindowConfig(sink=0, ring=10), sampler=Euler(steps=6, guidance=1.75)),
        out=Path("runs/doom"),
        steps=4400,
        ema=0.998,
        threads=1,
        compile=True,
        log_every=20,
        save_every=100,
        validate_every=200,
        sample_every=500,
    )
