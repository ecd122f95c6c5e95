"""Frechet Forcing on the shipped world's recipe: the trained doom model goes on learning on its own rollouts.

worldmodel train configs/doom_forced.py
worldmodel evaluate drift runs/doom_forced --data runs/data/doom_test --encoders autoencoder --out reports

It starts from what `configs/doom.py` has made (runs/doom/model) and keeps its memory, but samples in 4 steps without
guidance, a third of the work of a chunk: what guidance did for long rollouts, the distances do. Otherwise as
`configs/home_forced.py`, with smaller steps. demos/models/doom was made so, from demos/models/doom_base (--init).
docs/results/doom.md and frechet_forcing.md have what came out.
"""

from dataclasses import replace
from pathlib import Path

from worldmodel.optim import AdamW
from worldmodel.run import Run, load
from worldmodel.sampler import Euler


def run() -> Run:
    doom, forced = (load(Path(__file__).with_name(name)) for name in ("doom.py", "home_forced.py"))
    return replace(
        forced,
        data=replace(doom.data, length=42, batch=8),
        model=doom.model,
        optimizer=AdamW(lr=4e-5),
        stream=replace(doom.stream, sampler=Euler(steps=4)),
        init="runs/doom/model",
        out=Path("runs/doom_forced"),
    )
