"""A flow-matching policy: pictures, proprioception and an instruction to a chunk of actions, by the engine's samplers.

To the engine a policy is a model like any other: a chunk is K actions of A numbers, its control is an observation. The
observation is encoded once per chunk (`prepare`) into one vector, which joins the embedding of the flow time and
modulates the transformer over the chunk's actions (AdaLN-Zero), as in diffusion policies (Chi et al., 2303.04137) and
diffusion transformers (Peebles & Xie, 2212.09748). Pictures go through a small convolutional network that ends in
expected positions of learned features (spatial softmax, Levine et al., 1504.00702).

Letters: B rows, K actions of a chunk, A numbers of an action, N cameras, H W pixels, D width, P keypoints.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldmodel import flow
from worldmodel.chunk import Chunk
from worldmodel.errors import UserError
from worldmodel.memory import Geometry, Memory, MemoryConfig
from worldmodel.policies.eyes import FrozenFeatures, Keypoints, eye_on_frozen, trained_eye
from worldmodel.policies.observation import Interface, Observation
from worldmodel.state import State

EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """Sizes. chunk: K actions made together. dim, depth, heads, hidden: of the transformer over them. eyes: what sees
    the pictures, convolutions that are trained, or the first stages of EfficientNet-Lite0 with ImageNet's weights,
    frozen, with trained ones on top. channels: of the trained convolutions, each of which but the last halves the
    picture; on frozen features the last number alone counts. keypoints: P per camera. time_width: of the embedding of
    the flow time. ending: hidden width of a head that tells from what the eyes see, and nothing else, where the
    demonstration ends; only training asks it (`BehaviourCloning.ending`). 0: there is none."""

    chunk: int = 16
    dim: int = 128
    depth: int = 4
    heads: int = 4
    hidden: int = 384
    eyes: Literal["trained", "lite0"] = "trained"
    channels: tuple[int, ...] = (16, 32, 32)
    keypoints: int = 32
    time_width: int = 64
    ending: int = 0

    def __post_init__(self) -> None:
        for name in ("chunk", "dim", "depth", "heads", "hidden", "keypoints"):
            if getattr(self, name) < 1:
                raise UserError(f"policy: {name} must be at least 1, not {getattr(self, name)}")
        if self.ending < 0:
            raise UserError(f"policy: ending must be at least 0, not {self.ending}")
        if self.dim % self.heads:
            raise UserError(f"policy: dim {self.dim} must be a multiple of heads {self.heads}")
        if self.time_width < 2 or self.time_width % 2:
            raise UserError(f"policy: time_width must be even, not {self.time_width}")
        if not self.channels or min(self.channels) < 8 or any(width % 8 for width in self.channels):
            raise UserError(f"policy: channels must be multiples of 8, not {self.channels}")

    def build(self, interface: Interface) -> "FlowPolicy":
        """A new policy with random weights (drawn from torch's global generator)."""
        return FlowPolicy(self, interface)


@dataclass(frozen=True, slots=True)
class Prepared:
    """An observation after its encoder: all that the flow needs of it."""

    condition: Tensor  # [B, D]


class FlowPolicy(nn.Module):
    """Velocity model v(x_t, t | observation) of normalised action chunks [B, K, A]."""

    state_middle: Tensor
    state_half: Tensor
    action_middle: Tensor
    action_half: Tensor

    def __init__(self, cfg: PolicyConfig, interface: Interface) -> None:
        super().__init__()
        self.cfg, self.interface = cfg, interface
        for name, of in (("state", interface.state), ("action", interface.action)):
            self.register_buffer(f"{name}_middle", of.middle, persistent=False)
            self.register_buffer(f"{name}_half", of.half, persistent=False)
        dim, actions = cfg.dim, len(interface.action.names)
        self.frozen = FrozenFeatures() if cfg.eyes == "lite0" else None
        self.eyes = nn.ModuleList(self._eye() for _ in interface.cameras)
        self.words = nn.Embedding(len(interface.vocabulary) + 1, dim, padding_idx=0)
        self.state_in = nn.Sequential(nn.Linear(len(interface.state.names), dim), nn.SiLU())
        seen = 2 * cfg.keypoints * len(interface.cameras)
        self.fuse = nn.Sequential(nn.Linear(seen + 2 * dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))
        self.time = nn.Sequential(nn.Linear(cfg.time_width, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.action_in, self.action_out = nn.Linear(actions, dim), nn.Linear(dim, actions)
        self.places = nn.Parameter(0.02 * torch.randn(cfg.chunk, dim))
        self.blocks = nn.ModuleList(Block(dim, cfg.heads, cfg.hidden) for _ in range(cfg.depth))
        self.last = nn.Linear(dim, 2 * dim)
        self.ending = (
            nn.Sequential(nn.Linear(seen, cfg.ending), nn.SiLU(), nn.Linear(cfg.ending, actions))
            if cfg.ending
            else None
        )
        for zero in (self.last, self.action_out):
            nn.init.zeros_(zero.weight)
            nn.init.zeros_(zero.bias)

    # -- what the engine calls: through forward(mode, ...), so that DDP and FSDP see every use of the parameters -------

    def forward(self, mode: Literal["prepare", "velocity", "chunk", "chunk and ending"], *args: Any) -> Any:
        """For training, `chunk`: (x_t, t, observation) -> velocity; `chunk and ending`: the same, and the normalised
        action [B, A] at which the demonstration ends, told from the pictures alone (needs `PolicyConfig.ending`)."""
        match mode:
            case "prepare":
                return self._prepare(*args)
            case "velocity":
                return self._velocity(*args)
            case "chunk":
                x_t, t, observation = args
                return self._velocity(x_t, t, self._prepare(observation))
            case "chunk and ending":
                x_t, t, observation = args
                points = self.look(observation.image)
                assert self.ending is not None
                v = self._velocity(x_t, t, self._prepare(observation, points))
                return v, self.ending(points.flatten(1))

    @property
    def chunk(self) -> int:
        return self.cfg.chunk

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return (len(self.interface.action.names),)

    def empty_memory(self, config: MemoryConfig, batch: int) -> Memory:
        """The memory `config` for B rows; the policy looks at the present only, and neither writes nor reads any."""
        return config.empty(Geometry(0, 0, 0, 0), batch, self.action_in.weight)

    def prepare(self, control: Observation, state: State) -> Prepared:
        return self("prepare", control)

    def velocity(self, x_t: Tensor, t: Tensor, prepared: Prepared) -> Tensor:
        return self("velocity", x_t, t, prepared)

    def remember(self, chunk: Chunk, state: State, time: float = 0.0) -> Memory:
        return state.memory

    # -- units ---------------------------------------------------------------------------------------------------------

    def normalised(self, actions: Tensor) -> Tensor:
        """Actions [..., A] in the robot's units to those of the model."""
        return (actions - self.action_middle) / self.action_half

    def in_units(self, x: Tensor) -> Tensor:
        """The inverse of `normalised`."""
        return x * self.action_half + self.action_middle

    def look(self, image: Tensor) -> Tensor:
        """Pictures uint8 [B, N, 3, H, W] to what the eyes make of them, [B, N, 2 * P]."""
        pictures = image.to(self.action_in.weight.dtype) / 127.5 - 1
        if self.frozen is not None:
            pictures = self.frozen(pictures.flatten(0, 1)).unflatten(0, pictures.shape[:2])
        return torch.stack([eye(pictures[:, camera]) for camera, eye in enumerate(self.eyes)], 1)

    def _eye(self) -> Keypoints:
        channels, keypoints = self.cfg.channels, self.cfg.keypoints
        return trained_eye(channels, keypoints) if self.frozen is None else eye_on_frozen(channels[-1], keypoints)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _prepare(self, seen: Observation, points: Tensor | None = None) -> Prepared:
        points = self.look(seen.image) if points is None else points
        state = self.state_in((seen.state - self.state_middle) / self.state_half)
        given = (seen.words > 0).sum(1, keepdim=True).clamp_min(1)
        words = self.words(seen.words).sum(1) / given
        condition = self.fuse(torch.cat((*points.unbind(1), state, words), -1))
        return Prepared(condition if seen.context is None else condition + seen.context)

    def _velocity(self, x_t: Tensor, t: Tensor, prepared: Prepared) -> Tensor:
        e = self.time(flow.embed_time(t, self.cfg.time_width).to(x_t.dtype)) + prepared.condition[:, None]
        h = self.action_in(x_t) + self.places[: x_t.shape[1]]
        for block in self.blocks:
            h = block(h, F.silu(e))
        shift, scale = self.last(F.silu(e)).chunk(2, -1)
        return self.action_out(modulated(h, shift, scale))


def modulated(h: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Layer norm, then an affine map that the condition chose; all [B, K, D]."""
    return F.layer_norm(h, h.shape[-1:], eps=EPS) * (1 + scale) + shift


class Block(nn.Module):
    """AdaLN-Zero transformer block over the actions of a chunk, each of which sees all others."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.modulation = nn.Linear(dim, 6 * dim)
        nn.init.zeros_(self.modulation.weight)  # gates closed: the identity at first
        nn.init.zeros_(self.modulation.bias)

    def forward(self, h: Tensor, e: Tensor) -> Tensor:
        """Tokens h [B, K, D] under embeddings e [B, K, D]."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(e).chunk(6, -1)
        q, k, v = self.qkv(modulated(h, shift1, scale1)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        h = h + gate1 * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return h + gate2 * self.down(F.gelu(self.up(modulated(h, shift2, scale2)), approximate="tanh"))
