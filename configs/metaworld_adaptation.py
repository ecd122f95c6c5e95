"""A context encoder for a policy of Meta-World: it learns from the policy's own trials on shifted robots.

worldmodel trials runs/policies/reach --task reach --episodes 200 --out runs/trials/reach
worldmodel train configs/metaworld_adaptation.py
worldmodel evaluate recovery runs/policies/reach --encoder runs/adaptation/reach --task reach

Demonstrations are those that the policy was trained on, of the robot as built.
"""

from pathlib import Path

from worldmodel.optim import AdamW, Schedule
from worldmodel.policies.adaptation import AdaptationRun
from worldmodel.policies.behaviour_cloning import BehaviourCloning
from worldmodel.policies.context_encoder import ContextConfig
from worldmodel.policies.demonstrations import Demonstrations


def run() -> AdaptationRun:
    return AdaptationRun(
        policy=Path("runs/policies/reach"),
        trials=(Path("runs/trials/reach"),),
        demonstrations=Demonstrations(path=(Path("runs/data/robot/reach"),), batch=64, constant=("grip",)),
        model=ContextConfig(),
        objective=BehaviourCloning(prefix=4),
        optimizer=AdamW(lr=1e-3, weight_decay=1e-3),
        schedule=Schedule(shape="cosine", warmup=100, floor=0.01),
        out=Path("runs/adaptation/reach"),
        steps=2000,
        ema=0.995,
        threads=1,
        log_every=50,
        save_every=500,
        validate_every=250,
        validate=4,
        sample_every=0,
    )
