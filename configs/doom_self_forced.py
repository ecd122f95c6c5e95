"""Self Forcing on the shipped world's recipe: the baseline beside `configs/doom_forced.py`, from the same start.

worldmodel train configs/doom_self_forced.py

The teacher is what `configs/doom.py` has made, with the guidance that it streams with; critic and student start from
it. docs/results/frechet_forcing.md has what came out.
"""

from dataclasses import replace
from pathlib import Path

from worldmodel.differentiable import Gradients
from worldmodel.objectives.own_rollouts import OwnRollouts
from worldmodel.objectives.self_forcing import SelfForcing
from worldmodel.run import Run, load


def run() -> Run:
    forced = load(Path(__file__).with_name("doom_forced.py"))
    rollouts = OwnRollouts(prefix=1, lead=12, lengths=((0, 6),), gradients=Gradients(policy="exit_step"))
    return replace(
        forced,
        objective=SelfForcing(teacher="runs/doom/model", rollouts=rollouts, guidance=1.75),
        out=Path("runs/doom_self_forced"),
        steps=400,
    )
