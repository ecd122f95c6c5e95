"""A context encoder for a policy of Meta-World: it learns from the policy's own trials on shifted robots.

worldmodel trials runs/policies/button-press --task button-press --episodes 300 --most 0.14 \
    --out runs/trials/button-press
worldmodel train configs/metaworld_adaptation.py
worldmodel evaluate recovery runs/policies/button-press --encoder runs/adaptation/button-press --task button-press \
    --least 0.10 --most 0.12 --way mean

Demonstrations are those that the policy was trained on, of the robot as built.
Four of five trials are rewritten for an offset other than their own, so that the encoder does not learn them by heart.
"""

from pathlib import Path

from worldmodel.optim import AdamW, Schedule
from worldmodel.policies.adaptation import AdaptationRun
from worldmodel.policies.behaviour_cloning import BehaviourCloning
from worldmodel.policies.context_encoder import ContextConfig
from worldmodel.policies.demonstrations import Demonstrations


def run() -> AdaptationRun:
    return AdaptationRun(
        policy=Path("runs/policies/button-press"),
        trials=(Path("runs/trials/button-press"),),
        demonstrations=Demonstrations(path=(Path("runs/data/robot/button-press"),), batch=64, constant=("grip",)),
        model=ContextConfig(),
        rewritten=0.8,
        most=0.14,
        objective=BehaviourCloning(prefix=4),
        optimizer=AdamW(lr=1e-3, weight_decay=1e-3),
        schedule=Schedule(shape="cosine", warmup=100, floor=0.01),
        out=Path("runs/adaptation/button-press"),
        steps=1500,
        ema=0.995,
        threads=1,
        log_every=50,
        save_every=500,
        validate_every=250,
        validate=4,
        sample_every=0,
    )
