"""Optimizers and learning-rate schedules, as configuration values.

Muon orthogonalises the momentum of every hidden matrix (Jordan et al., 2024, "Muon: an optimizer for hidden layers");
everything else is left to AdamW. `torch.optim.Muon` computes in bfloat16, which CPUs without matrix units run about a
hundred times slower than fp32, and treats a fused query-key-value matrix as one: ours computes in fp32 on CPUs and
splits that matrix into its three parts.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from worldmodel.errors import UserError
from worldmodel.kernels.newton_schulz import newton_schulz

FUSED = {"qkv": 3, "kv": 2}  # layers whose weight is that many matrices above each other


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz towards the nearest semi-orthogonal matrix. g: [..., m, n]; singular values land near 1."""
    return newton_schulz(g.bfloat16() if g.is_cuda else g.float(), steps).to(g.dtype)


class MuonOptimizer(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; updates are scaled to the root mean square that AdamW's have (0.2).

    Where several processes hold the same weights and gradients, as after data-parallel averaging, each orthogonalises
    its share of the matrices and hands it to the others. Weights that FSDP2 shards are gathered matrix by matrix, and
    every process orthogonalises all. Matrices go one by one: a batch of equal ones leaves a CPU's cache and is slower.
    """

    def __init__(self, params: Iterable[dict[str, Any]], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "parts": 1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        todo = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for p, group in todo:
            state = self.state[p]
            if not state:
                state["momentum"] = torch.zeros_like(p)
            state["momentum"].lerp_(p.grad, 1 - group["momentum"])
        for (p, group), direction in zip(todo, self._directions(todo), strict=True):
            scale = 0.2 * math.sqrt(max(p.shape[0] // group["parts"], p.shape[1]))
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.add_(direction, alpha=-group["lr"] * scale)

    def _directions(self, todo: list[tuple[Tensor, dict[str, Any]]]) -> Iterator[Tensor]:
        """Of every matrix in turn; with several processes each one's share in one buffer, broadcast by its owner."""
        world = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
        if world == 1 or any(isinstance(p, DTensor) for p, _ in todo):
            yield from (self._direction(p, group) for p, group in todo)
            return
        owners = divide([p.numel() * min(p.shape[0] // group["parts"], p.shape[1]) for p, group in todo], world)
        shares: list[Iterator[Tensor]] = [iter(()) for _ in range(world)]
        waits = []
        for rank in sorted(set(owners)):
            own = [one for one, owner in zip(todo, owners, strict=True) if owner == rank]
            if rank == distributed.get_rank():
                share = torch.cat([self._direction(p, group).flatten() for p, group in own])
            else:
                share = own[0][0].new_empty(sum(p.numel() for p, _ in own))
            shares[rank] = iter(share.split([p.numel() for p, _ in own]))
            waits.append(distributed.broadcast(share, rank, async_op=True))
        for work in waits:
            work.wait()
        yield from (next(shares[owner]).view_as(p) for (p, _), owner in zip(todo, owners, strict=True))

    def _direction(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        """What one matrix is moved along, before scaling."""
        assert p.grad is not None
        update = p.grad.lerp(self.state[p]["momentum"], group["momentum"])
        whole = update.full_tensor() if isinstance(update, DTensor) else update
        made = orthogonalise(whole.unflatten(0, (group["parts"], -1))).flatten(0, 1)
        if isinstance(update, DTensor):  # every rank has the whole: it keeps its own part
            return distribute_tensor(made, update.device_mesh, update.placements, src_data_rank=None)
        return made


def divide(costs: list[int], shares: int) -> list[int]:
    """The share of each piece of work: the costliest first, each to the share that has least so far."""
    owners, loads = [0] * len(costs), [0] * shares
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        owners[i] = loads.index(min(loads))
        loads[owners[i]] += costs[i]
    return owners


def _check(cfg: "AdamW | Muon") -> None:
    """Refuse what no optimizer can work with, NaN among it."""
    for name in ("lr", "weight_decay"):
        if not 0 <= getattr(cfg, name) < math.inf:
            raise UserError(f"optimizer.{name} must be a finite number of at least 0, not {getattr(cfg, name)}")
    averages = {"betas": cfg.betas, "momentum": (cfg.momentum,) if isinstance(cfg, Muon) else ()}
    for name, values in averages.items():
        if not all(0 <= value < 1 for value in values):
            raise UserError(f"optimizer.{name} must be in [0, 1), not {', '.join(str(value) for value in values)}")


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """AdamW for everything; weight decay only on matrices."""

    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check(self)

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [_adamw([p for p in model.parameters() if p.requires_grad], self)]


@dataclass(frozen=True, kw_only=True)
class Muon:
    """Muon for the blocks' weight matrices, AdamW with the same learning rate for all else (adapters too)."""

    lr: float = 2e-3
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check(self)

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        hidden = {n: p for n, p in named if "blocks." in n and n.endswith(".weight") and p.ndim == 2}
        fused = {name: FUSED.get(name.split(".")[-2], 1) for name in hidden}
        groups = [{"params": [hidden[n] for n in hidden if fused[n] == parts], "parts": parts} for parts in (1, 2, 3)]
        rest: list[torch.optim.Optimizer] = [_adamw([p for n, p in named if n not in hidden], self)]
        if not hidden:  # adapters only
            return rest
        return [MuonOptimizer([g for g in groups if g["params"]], self.lr, self.momentum, self.weight_decay), *rest]


def _adamw(params: list[nn.Parameter], cfg: AdamW | Muon) -> torch.optim.AdamW:
    groups = [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": cfg.weight_decay},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=cfg.lr, betas=cfg.betas)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning-rate factor: linear warm-up of `warmup` steps, then constant or a cosine down to `floor` at the end."""

    shape: Literal["constant", "cosine"] = "cosine"
    warmup: int = 100
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise UserError(f"schedule.warmup must be at least 0, not {self.warmup}")
        if not 0 <= self.floor <= 1:
            raise UserError(f"schedule.floor must be in [0, 1], not {self.floor}")

    def __call__(self, step: int, steps: int) -> float:
        """The factor for the update that leads from `step` to step + 1, of `steps` in all."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.shape == "constant":
            return 1.0
        done = (step - self.warmup) / max(1, steps - self.warmup)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
