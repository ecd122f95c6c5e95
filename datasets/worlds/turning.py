"""How policies that come back turn away from a view: for a given number of frames, and exactly back to it."""

import numpy as np

HORIZONS = (4, 8, 16, 32, 64, 96, 128)
"""Frames out of sight that such policies choose from."""

APART = 91.0  # degrees from the view at which nothing of it is seen: cameras here have fields of view of up to 90
SPEED = (4.5, 7.9)  # degrees per frame; a step across the edge of the view adds up to 2
JITTER = 0.25  # degrees, of a head that is held still


def wrapped(angle: float) -> float:
    """Degrees in [-180, 180)."""
    return (angle + 180) % 360 - 180


def leaving(speed: float) -> list[float]:
    """Degrees to the side, frame by frame, from the first turn to the first frame at APART or more."""
    turned, found = 0.0, list[float]()
    while turned < APART:
        turned += speed
        turned = max(turned, APART) if turned > APART - 2 else turned  # never just inside the edge
        found.append(turned)
    return found


def returning(turned: float, speed: float) -> list[float]:
    """Degrees to the side, frame by frame, from `turned` down to 0 in steps of about `speed`, the last one to 0."""
    steps = max(1, round(turned / speed))
    return [turned * (1 - (k + 1) / steps) for k in range(steps)]


def looking_elsewhere(first: float, frames: int, speed: float, full: bool, rng: np.random.Generator) -> list[float]:
    """Degrees to the side in `frames` frames out of sight, the first of them `first`, between APART and 360 - APART.

    Turns to random places in there and rests. The last is APART, or 360 - APART if the turn is to go on to a full one;
    no step is longer than `speed`. A full turn needs (frames - 1) * speed >= 360 - APART - first.
    """
    turned, found, goal, rest = first, [first], first, 0
    for left in range(frames - 2, -1, -1):
        if rest > 0:
            rest -= 1
        elif abs(goal - turned) < speed:
            goal, rest = float(rng.uniform(APART, 360 - APART)), int(rng.integers(0, 7))
        step = 0.0 if rest else float(np.clip(goal - turned, -speed, speed))
        low = 360 - APART - speed * left if full else APART
        high = 360 - APART if full else APART + speed * left
        turned = float(np.clip(turned + step, max(low, APART), min(high, 360 - APART)))
        found.append(turned)
    return found


def turned_away(frames: int, rng: np.random.Generator) -> list[float]:
    """Degrees to the left of a view, frame by frame, of somebody who turns away from it on the spot and comes back.

    Exactly `frames` of them are at least APART from the view; the last is the view again. No step is longer than 9.9.
    """
    side, speed = float(rng.choice((-1, 1))), float(rng.uniform(*SPEED))
    out = leaving(speed)
    full = (frames - 1) * speed > 1.3 * (360 - APART - out[-1]) and bool(rng.random() < 0.5)
    away = looking_elsewhere(out[-1], frames, speed, full, rng)
    back = [360 - each for each in returning(360 - away[-1], speed)] if full else returning(away[-1], speed)
    return [side * each for each in (*out[:-1], *away, *back)]


def held(frames: int, rng: np.random.Generator) -> list[float]:
    """Degrees to the left of a view, frame by frame, of somebody who looks at it with tiny turns; the last is 0."""
    sway = np.clip(JITTER * rng.standard_normal(frames), -2 * JITTER, 2 * JITTER)
    return [*sway[:-1].tolist(), 0.0]
