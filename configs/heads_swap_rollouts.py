"""The generator of `configs/heads_swap.py`, on short rollouts of its own (StreamingSwap's short-context rollout
training; interpretation of an abstract).

worldmodel train configs/heads_swap.py
worldmodel train configs/heads_swap_rollouts.py
"""

from dataclasses import replace
from pathlib import Path

from worldmodel.datasets.heads.swap_run import SwapRun
from worldmodel.objectives.swap_matching import ShortContext
from worldmodel.run import load_training


def run() -> SwapRun:
    first = load_training(Path(__file__).with_name("heads_swap.py"))
    assert isinstance(first, SwapRun)
    rollouts = ShortContext(chunks=(2, 7), last=1)
    return replace(
        first,
        data=replace(first.data, length=first.model.chunk * (rollouts.chunks[1] + rollouts.last), seed=1),
        objective=replace(first.objective, rollouts=rollouts),
        optimizer=replace(first.optimizer, lr=4e-4),
        init=first.out,
        out=Path("runs/heads_swap_rollouts"),
        steps=500,
        validate=1,
    )
