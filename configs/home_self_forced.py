"""Self Forcing in the same world, from the same start: the baseline with a teacher and a critic.

worldmodel train configs/home_self_forced.py

Teacher, critic and student start from what `configs/home.py` has made (runs/home/model).
docs/results/frechet_forcing.md has what came out.
"""

from dataclasses import replace
from pathlib import Path

from worldmodel.differentiable import Gradients
from worldmodel.objectives.own_rollouts import OwnRollouts
from worldmodel.objectives.self_forcing import SelfForcing
from worldmodel.run import Run, load


def run() -> Run:
    forced = load(Path(__file__).with_name("home_forced.py"))
    rollouts = OwnRollouts(prefix=1, lead=12, lengths=((0, 6),), gradients=Gradients(policy="exit_step"))
    return replace(
        forced,
        objective=SelfForcing(teacher="runs/home/model", rollouts=rollouts),
        out=Path("runs/home_self_forced"),
        steps=300,
    )
