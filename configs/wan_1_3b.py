"""Wan 2.1 T2V 1.3B as an action-conditioned streaming world model: adapters on one GPU of 24 GB.

    worldmodel encode DATA --tokenizer PATH/TO/Wan2.1-T2V-1.3B-Diffusers/vae --size 832x480 --device cuda --out data/wan
    worldmodel estimate configs/wan_1_3b.py
    worldmodel train configs/wan_1_3b.py --model.actions 28

`init` is a local folder of the diffusers pipeline, or its name on the hub. model.actions is the size of one latent
frame's packed actions: four environment actions, as Wan's autoencoder packs four frames.
"""

from pathlib import Path

from worldmodel.datasets.latents import LatentClips
from worldmodel.memory import WindowConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.lora import LoraConfig
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.flow_matching import FlowMatching
from worldmodel.optim import AdamW, Schedule
from worldmodel.run import Run
from worldmodel.sampler import Euler

WAN_1_3B = DiTConfig(
    channels=16, size=(60, 104), patch=2, chunk=3, dim=1536, depth=30, heads=12, hidden=8960, actions=28, text=4096,
    text_tokens=512, time_width=256, learned_position=False, qk_norm="across_heads", pairing="interleaved",
)  # fmt: skip


def run() -> Run:
    return Run(
        data=LatentClips(path=(Path("data/wan"),), length=9, batch=8),
        model=WAN_1_3B,
        objective=FlowMatching(chunk_noise="teacher", context_noise=0.1, shift=5.0),
        optimizer=AdamW(lr=1e-4, weight_decay=0.0),
        schedule=Schedule(warmup=100),
        stream=StreamConfig(memory=WindowConfig(sink=3, ring=6), sampler=Euler(steps=8, shift=5.0)),
        out=Path("runs/wan_1_3b"),
        steps=5000,
        micro=8,
        ema=0.0,
        precision="bf16",
        checkpointing=True,
        compile=True,
        init="Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
        lora=LoraConfig(rank=64, alpha=64),
    )
