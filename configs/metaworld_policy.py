"""A policy for tasks of Meta-World from scripted demonstrations, on a CPU.

worldmodel collect robot/reach --policy jolted --episodes 100 --frames 160 --seed 1000 --out runs/data/robot/reach
worldmodel train configs/metaworld_policy.py
worldmodel evaluate policy runs/policies/reach --tasks reach --episodes 200

Another task is another --data.path and --out; several paths make one policy that reads its instructions.
"""

from pathlib import Path

from worldmodel.optim import AdamW, Schedule
from worldmodel.policies.behaviour_cloning import BehaviourCloning
from worldmodel.policies.demonstrations import Demonstrations
from worldmodel.policies.flow_policy import PolicyConfig
from worldmodel.policies.policy import Acting
from worldmodel.policies.policy_run import PolicyRun
from worldmodel.sampler import Euler


def run() -> PolicyRun:
    return PolicyRun(
        data=Demonstrations(
            path=(Path("runs/data/robot/reach"),), batch=64, validation=0.1, constant=("grip",), early=0.2
        ),
        model=PolicyConfig(ending=64),
        objective=BehaviourCloning(prefix=4, ending=0.7),
        acting=Acting(sampler=Euler(steps=8), execute=8),
        optimizer=AdamW(lr=1e-3, weight_decay=1e-3),
        schedule=Schedule(shape="cosine", warmup=100, floor=0.01),
        out=Path("runs/policies/reach"),
        steps=2000,
        ema=0.995,
        threads=1,
        log_every=50,
        save_every=500,
        validate_every=250,
        validate=4,
        sample_every=0,
    )
