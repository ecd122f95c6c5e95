"""A robot that does as the test says, for a policy small enough to act in a millisecond."""

import threading
from dataclasses import dataclass, field

import numpy as np
import torch

from worldmodel.policies.demo.show import Plan, Show
from worldmodel.policies.flow_policy import PolicyConfig
from worldmodel.policies.observation import Interface, Range
from worldmodel.policies.policy import Acting, Policy
from worldmodel.sampler import Euler

HORIZON = 8
INTERFACE = Interface(
    cameras=("front",),
    size=(16, 16),
    state=Range(("x",), (-1.0,), (1.0,)),
    action=Range(("x", "y", "z", "grip"), (-1.0,) * 4, (1.0,) * 4),
    vocabulary=("reach",),
    words=1,
    fps=80.0,
)


def tiny_policy() -> Policy:
    torch.manual_seed(0)
    cfg = PolicyConfig(chunk=4, dim=16, depth=1, heads=2, hidden=32, channels=(8, 8), keypoints=4, time_width=8)
    return Policy(cfg.build(INTERFACE).eval().requires_grad_(False), Acting(sampler=Euler(steps=1), execute=2))


@dataclass
class Facts:
    task: str


class Stand:
    """What its robots have done, and what they shall do.

    solves: whether a trial under a shift, of which a token is known or None, succeeds, at its third step. gate: every
    step waits for it.
    """

    def __init__(self, solves=lambda shift, known: shift == "nominal", encoder: "Encoder | None" = None) -> None:
        self.solves, self.encoder, self.gate = solves, encoder, threading.Event()
        self.gate.set()
        self.threads: set[int] = set()
        self.begun: list[tuple[str, int]] = []  # shift and seed of every trial
        self.steps = 0
        self.fails: Exception | None = None
        self.closed = 0

    def open(self, task, interface, told) -> "Robot":
        return Robot(task, told, self)


@dataclass
class Robot:
    task: str
    told: object
    stand: Stand
    moment: int = 0
    shift: str = ""
    facts: Facts = field(init=False)

    def __post_init__(self) -> None:
        self.facts = Facts(self.task)
        self.note()

    def note(self) -> None:
        self.stand.threads.add(threading.get_ident())

    def become(self, shift) -> None:
        self.shift = shift.name

    def reset(self, *, seed: int):
        self.note()
        self.stand.begun.append((self.shift, seed))
        self.moment, self.known = 0, self.stand.encoder.take() if self.stand.encoder else None
        self.told(self)
        return {"state": np.zeros(1, np.float32)}, {}

    def step(self, action):
        self.note()
        assert self.stand.gate.wait(60)
        if self.stand.fails is not None:
            raise self.stand.fails
        self.stand.steps += 1
        self.moment += 1
        over = self.moment == 3 and self.stand.solves(self.shift, self.known)
        self.told(self)
        return {"state": np.zeros(1, np.float32)}, 0.5, over, False, {"success": over}

    def look(self):
        return {"front": np.zeros((16, 16, 3), np.uint8)}

    def picture(self):
        self.note()
        return np.full((24, 32, 3), (200, 100, 10 * self.moment), np.uint8)

    def close(self) -> None:
        self.note()
        self.stand.closed += 1


class Encoder:
    """A context encoder whose n-th token is [2 ** n, 1], and that keeps what the policy is told."""

    def __init__(self) -> None:
        self.made, self.told, self.newest = 0, [], None

    def token(self, policy, trial) -> torch.Tensor:
        self.made += 1
        return torch.tensor([2.0 ** (self.made - 1), 1.0])

    def context(self, token: torch.Tensor) -> torch.Tensor:
        self.newest = token.tolist()
        self.told.append(self.newest)
        return torch.zeros(16)

    def take(self) -> list[float] | None:
        """What the policy is told of the trial that begins."""
        taken, self.newest = self.newest, None
        return taken


def show(stand: Stand, **plan) -> Show:
    return Show(
        tiny_policy(),
        Plan(**{"task": "reach", "horizon": HORIZON, "trials": 2, **plan}),
        stand.encoder,
        opens=stand.open,
    )
