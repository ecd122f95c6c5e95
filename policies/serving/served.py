"""A policy behind the server: requests to chunks, in one thread.

Every request goes through the policy as a batch of one, so that its answer is the same, to the last bit, whoever else
is waiting. With `together` those that wait share a batch, which is faster on a GPU and agrees only to rounding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodel.errors import UserError
from worldmodel.policies.adaptation import Adaptation
from worldmodel.policies.episodes import Trial
from worldmodel.policies.observation import Interface, Observation
from worldmodel.policies.planning import Chunking, Committed, plan
from worldmodel.policies.policy import AnyPolicy, Policy
from worldmodel.policies.serving.requests import Request


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """chunking: what is done with the committed actions of a request (see `planning`). adaptation: the policy's context
    encoder. UserError if the policy cannot do so."""

    policy: AnyPolicy
    together: bool = False
    chunking: Chunking = "guided"
    adaptation: Adaptation | None = None

    def __post_init__(self) -> None:
        if self.chunking not in self.policy.chunkings:
            can = ", ".join(self.policy.chunkings)
            raise UserError(f"chunking {self.chunking}: this policy can join its chunks by {can} only")

    @property
    def interface(self) -> Interface:
        return self.policy.interface

    @property
    def chunk(self) -> int:
        return self.policy.model.chunk

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"execute": self.policy.acting.execute, "chunking": self.chunking, "together": self.together}

    @property
    def device(self) -> torch.device:
        return self.policy.device

    @property
    def context(self) -> int | None:
        """W, numbers of a token; None without a context encoder."""
        return None if self.adaptation is None else self.adaptation.encoder.cfg.width

    def token(self, trial: Trial) -> NDArray[np.float32]:
        """What a trial shows of the robot that made it, [W]."""
        assert self.adaptation is not None and isinstance(self.policy, Policy)
        return self.adaptation.token(self.policy, trial).float().cpu().numpy()

    def infer(self, requests: list[Request]) -> list[NDArray[np.float32]]:
        """The next chunk of each request, [K, A] in the robot's units. Never fewer or more rows than requests."""
        made: dict[int, NDArray[np.float32]] = {}
        for places in self._groups(requests):
            chunks = self._chunks([requests[place] for place in places])
            made |= dict(zip(places, chunks, strict=True))
        return [made[place] for place in range(len(requests))]

    def _groups(self, requests: Sequence[Request]) -> list[list[int]]:
        """Places of the requests that share a batch: those with as many actions planned and fixed, and all or none with
        a token."""
        if not self.together:
            return [[place] for place in range(len(requests))]
        groups: dict[tuple[int, int, bool], list[int]] = {}
        for place, request in enumerate(requests):
            planned = 0 if request.committed is None else len(request.committed)
            groups.setdefault((planned, request.delay, request.token is not None), []).append(place)
        return list(groups.values())

    def _chunks(self, rows: Sequence[Request]) -> NDArray[np.float32]:
        model = self.policy.model
        seen = Observation(
            image=torch.from_numpy(np.stack([row.image for row in rows])),
            state=torch.from_numpy(np.stack([row.state for row in rows])),
            words=torch.tensor([row.words for row in rows], dtype=torch.long),
            length=model.chunk,
            context=self._context(rows),
        )
        made = plan(
            model,
            self.policy.acting.sampler,
            seen.to(self.device),
            torch.tensor([row.seed for row in rows], device=self.device),
            torch.tensor([row.step for row in rows], device=self.device),
            self.chunking,
            self._committed(rows),
        )
        return model.in_units(made).float().cpu().numpy()

    def _context(self, rows: Sequence[Request]) -> Tensor | None:
        tokens = [row.token for row in rows if row.token is not None]
        if not tokens or self.adaptation is None:
            return None
        known = [self.adaptation.context(torch.from_numpy(token).to(self.device)) for token in tokens]
        return torch.stack(known)  # row by row, as in `evaluate recovery`

    def _committed(self, rows: Sequence[Request]) -> Committed | None:
        """What the rows' last chunks planned, filled up to K with its end; None where nothing was."""
        planned = [row.committed for row in rows if row.committed is not None]
        if not planned:
            return None
        held = torch.from_numpy(np.stack(planned)).to(self.device)
        count = held.shape[1]
        held = torch.cat((held, held[:, -1:].expand(-1, self.chunk - count, -1)), 1)
        return Committed(self.policy.model.normalised(held), count, rows[0].delay)
