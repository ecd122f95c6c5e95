"""A context encoder: from a robot's own trial to one token that tells a frozen policy how this robot is off.

After Self-Adaptive VLA (2609.30092; no public code). A context is a trial, sampled every few control steps: per moment
a token for each camera, made of what the frozen policy's eyes saw, and one of proprioception and commanded action. Two
blocks of self-attention with temporal rotary positions, then a learned query pools all of it to one token. It joins the
embedding of the flow time (and of the observation, which is added there too) before AdaLN. The map into that embedding
has no bias, so that a token of zeros leaves the policy bit for bit as it was, before and after training.

Tokens of several trials are summed (or their mean is taken): a policy that still errs after one trial makes a context
that shows what is left to correct.

Letters: B rows, M moments of a context, N cameras, P keypoints, S state and A action dimensions, W width of the token,
D width of the policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldmodel.errors import UserError
from worldmodel.kernels.rope import rotate
from worldmodel.models.rope import Rope3D
from worldmodel.policies.flow_policy import FlowPolicy


@dataclass(frozen=True, slots=True)
class Context:
    """Trials of B robots, as a policy sees them; shorter ones are filled up."""

    seen: Tensor  # [B, M, N, 2 * P] what the eyes made of the pictures
    motion: Tensor  # [B, M, S + A] proprioception and the action commanded then, normalised
    valid: Tensor  # [B, M] bool, the moments that were

    def select(self, rows: Tensor) -> "Context":
        return Context(self.seen[rows], self.motion[rows], self.valid[rows])


def context_of(model: FlowPolicy, image: Tensor, state: Tensor, action: Tensor, valid: Tensor) -> Context:
    """What a policy makes of trials, without gradients.

    image: uint8 [B, M, N, 3, H, W]. state [B, M, S] and action [B, M, A] in the robot's units. valid: [B, M] bool.
    """
    with torch.no_grad():
        seen = model.look(image.flatten(0, 1)).unflatten(0, valid.shape)
        moved = ((state - model.state_middle) / model.state_half, model.normalised(action))
        return Context(seen, torch.cat(moved, -1), valid)


@dataclass(frozen=True, kw_only=True)
class ContextConfig:
    """width: W. depth: blocks of self-attention."""

    width: int = 64
    depth: int = 2
    heads: int = 4

    def __post_init__(self) -> None:
        for name in ("width", "depth", "heads"):
            if getattr(self, name) < 1:
                raise UserError(f"context encoder: {name} must be at least 1, not {getattr(self, name)}")
        if self.width % (2 * self.heads):
            raise UserError(f"context encoder: width {self.width} must be an even multiple of heads {self.heads}")

    def build(self, model: FlowPolicy) -> "ContextEncoder":
        """A new encoder for this policy, with random weights (drawn from torch's global generator)."""
        interface, sizes = model.interface, model.cfg
        motion = len(interface.state.names) + len(interface.action.names)
        return ContextEncoder(self, len(interface.cameras), 2 * sizes.keypoints, motion, sizes.dim)


class ContextEncoder(nn.Module):
    """Contexts to tokens [B, W], and tokens into a policy."""

    def __init__(self, cfg: ContextConfig, cameras: int, seen: int, motion: int, dim: int) -> None:
        super().__init__()
        self.cfg = cfg
        self.seen_in = nn.Linear(seen, cfg.width)
        self.motion_in = nn.Sequential(nn.Linear(motion, cfg.width), nn.GELU("tanh"), nn.Linear(cfg.width, cfg.width))
        self.kinds = nn.Parameter(0.02 * torch.randn(cameras + 1, cfg.width))  # the type of a token
        self.blocks = nn.ModuleList(_Block(cfg.width, cfg.heads) for _ in range(cfg.depth))
        self.query = nn.Parameter(0.02 * torch.randn(cfg.width))
        self.pool, self.norm = nn.Linear(cfg.width, 2 * cfg.width), nn.LayerNorm(cfg.width)
        self.token_out = nn.Linear(cfg.width, cfg.width)
        self.inject = nn.Linear(cfg.width, dim, bias=False)  # no bias: a zero token changes nothing, ever
        self.rope = Rope3D(cfg.width // cfg.heads, (1, 1))

    def forward(self, context: Context) -> Tensor:
        """One token per trial, [B, W]."""
        tokens = torch.cat((self.seen_in(context.seen), self.motion_in(context.motion)[:, :, None]), 2) + self.kinds
        batch, moments, kinds = tokens.shape[:3]
        places = torch.arange(moments, device=tokens.device).repeat_interleave(kinds)[None]
        table, valid = self.rope.table(places), context.valid.repeat_interleave(kinds, 1)[:, None, None]
        h = tokens.flatten(1, 2)
        for block in self.blocks:
            h = block(h, table, valid)
        k, v = self.pool(self.norm(h)).chunk(2, -1)
        query = self.query.expand(batch, 1, -1)
        found = F.scaled_dot_product_attention(query, k, v, attn_mask=valid[:, 0])[:, 0]
        return self.token_out(found)

    def injected(self, token: Tensor) -> Tensor:
        """A token [B, W] as `Observation.context` takes it, [B, D]."""
        return self.inject(token)


class _Block(nn.Module):
    """Pre-norm self-attention with rotary positions, and an MLP of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, h: Tensor, table: tuple[Tensor, Tensor], valid: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(h)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(rotate(q, table, "half"), rotate(k, table, "half"), v, attn_mask=valid)
        h = h + self.out(found.transpose(1, 2).flatten(2))
        return h + self.mlp(self.norm2(h))


def ensemble(tokens: Sequence[Tensor], way: Literal["sum", "mean"] = "sum") -> Tensor:
    """The token [B, W] of several trials of the same robots. ValueError without any."""
    if not tokens:
        raise ValueError("no trial, no token: a robot without one has no context")
    total = torch.stack(list(tokens)).sum(0)
    return total if way == "sum" else total / len(tokens)
