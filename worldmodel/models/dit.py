"""Block-causal diffusion transformer over latent video: bidirectional inside a chunk, causal between chunks.

The arithmetic of a block is Wan's (see wan.py, which loads its weights); the way of generating chunk by chunk with a
clean pass that writes the memory follows CausVid and Self Forcing (2412.07772, 2506.08009), actions enter through
AdaLN as in MiniWorld (2608.01127).

Shape letters: B rows, F frames in this call, K frames in a chunk, C H W latent channels, height, width, n tokens of a
frame, D width of the model, A packed action size, N remembered tokens, L layers, h heads.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from worldmodel import flow
from worldmodel.chunk import ActionControl, Chunk, ConditionControl
from worldmodel.errors import UserError
from worldmodel.kernels import backend
from worldmodel.kernels.attention import Seen, Segment, Visible
from worldmodel.kernels.fast_weight import FastWeights
from worldmodel.kernels.modulate import modulate
from worldmodel.kernels.rope import Pairing
from worldmodel.memory import (
    Context,
    FastGeometry,
    Geometry,
    LactConfig,
    LactMemory,
    Memory,
    MemoryConfig,
    Pieces,
    mean_keys,
)
from worldmodel.memory.lact import Written
from worldmodel.state import State

from .clip_view import ClipView, check_chunks, view_clip
from .cpu_pass import CpuPass, serves
from .fast_layer import FastConfig, FastLayer, Turn
from .layers import Block, BlockConfig, QKNorm
from .rope import Rope3D

LEAST_TIME = 0.05  # by which a predicted clean frame's distance is divided at the least


@dataclass(frozen=True, kw_only=True)
class DiTConfig:
    """Sizes and choices of the transformer.

    channels, size: the latent's C and (H, W). patch: side of the square patch that becomes one token. chunk: K.
    actions: packed action size A, 0 for none. text: width of the text features, 0 for none; text_tokens: length of the
    model's own text, used where a control brings none, 0 if every control must bring one. rank: rank of the per-layer
    modulation residual, 0 for none. learned_position adds a learned embedding per token of the grid. anchor: the newest
    finished frame before a chunk is a second input of each of its frames, concatenated to the noisy one, as DIAMOND
    (2405.12399) and image-to-video models concatenate their context; a small model learns to move it much sooner than
    to find it through attention. condition: channels that the control brings beside each noisy frame, concatenated to
    it in front of the first layer, as image-to-video and inpainting models do; 0 for none. Such a model takes a
    `ConditionControl`, and neither actions nor text. predicts: what the last layer makes. `velocity`, or the `clean`
    frame x, whose velocity (x_t - x) / t is then taken (JiT, 2511.13720; t no smaller than `LEAST_TIME`): a patch of
    more numbers than the width can carry loses its noise on the way, and a velocity is mostly that noise. Such a model
    is shown `flow.expected` of x_t, nothing at pure noise, so that none of a patch's noise is left in it (ours). fast:
    fast weights beside attention, which need a lact memory.
    """

    channels: int
    size: tuple[int, int]
    patch: int = 2
    chunk: int = 4
    dim: int = 192
    depth: int = 6
    heads: int = 6
    hidden: int = 768
    mlp: Literal["gelu", "swiglu"] = "gelu"
    actions: int = 0
    text: int = 0
    text_tokens: int = 0
    rank: int = 0
    time_width: int = 256
    learned_position: bool = True
    anchor: bool = False
    condition: int = 0
    predicts: Literal["velocity", "clean"] = "velocity"
    fast: FastConfig | None = None
    qk_norm: QKNorm = "head"
    pairing: Pairing = "half"
    theta: float = 10000.0
    eps: float = 1e-6

    def __post_init__(self) -> None:
        h, w = self.size
        for name in ("channels", "patch", "chunk", "dim", "depth", "heads", "hidden", "time_width"):
            if getattr(self, name) < 1:
                raise UserError(f"DiT: {name} must be at least 1, not {getattr(self, name)}")
        if min(h, w) < 1 or self.time_width % 2:
            raise UserError(f"DiT: size {h} x {w} must be positive and time_width {self.time_width} even")
        if self.condition < 0 or (self.condition and (self.actions or self.text)):
            raise UserError(
                f"DiT: condition {self.condition} must be at least 0, and stands for actions {self.actions} and text "
                f"{self.text}, not beside them"
            )
        if self.text_tokens and not self.text:
            raise UserError(f"DiT: a text of {self.text_tokens} tokens needs the width of its features in text, not 0")
        if h % self.patch or w % self.patch:
            raise UserError(f"DiT: a latent of {h} x {w} does not cut into patches of {self.patch} x {self.patch}")
        if self.dim % self.heads or (self.dim // self.heads) % 2:
            raise UserError(f"DiT: width {self.dim} does not cut into {self.heads} heads of even width")
        if self.fast is not None:
            self.fast.sizes(self.dim)

    @property
    def grid(self) -> tuple[int, int]:
        return self.size[0] // self.patch, self.size[1] // self.patch

    @property
    def geometry(self) -> Geometry:
        fast = None if self.fast is None else FastGeometry(*self.fast.sizes(self.dim), self.fast.momentum)
        return Geometry(self.depth, self.heads, self.dim // self.heads, self.grid[0] * self.grid[1], fast)

    def check_memory(self, config: MemoryConfig) -> None:
        """UserError for a memory that a model of these sizes cannot use: chunks must fit, fast weights go together."""
        config.check(self.chunk)
        if (self.fast is not None) != isinstance(config, LactConfig):
            has = "has fast weights (model.fast)" if self.fast is not None else "has no fast weights (model.fast)"
            raise UserError(f"the model {has}, its memory is {config}: fast weights and LactConfig go together")

    @property
    def seen(self) -> int:
        """Channels of a frame as the first layer sees it."""
        return self.channels * (2 if self.anchor else 1) + self.condition

    def build(self) -> "DiT":
        return DiT(self)


DiTControl = ActionControl | ConditionControl


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is computed once per chunk: the control's embeddings, positions, the memory as attention reads it."""

    action: Tensor | None  # [B, F, D]
    modulation: Tensor | None  # [B, F, 6, D], the action's own residual
    rope: tuple[Tensor, Tensor]  # [B, 1, F * n, D / 2h] each
    pieces: tuple[Context, ...]  # of the memory
    seen: Seen  # which of [pieces, frames] every token looks at
    text: tuple[tuple[Tensor, Tensor], ...] | None  # per layer
    last: Tensor | None = None  # [B, C, H, W] the frame before the first
    condition: Tensor | None = None  # [B, F, c, H, W]
    turns: tuple[Turn, ...] | None = None  # of a clip's chunks, with fast weights
    cpu: CpuPass | None = None  # the blocks of a stream on a CPU, for calls without gradients

    @property
    def past(self) -> Context | None:
        """The memory in one piece, None without one."""
        return self.pieces[0] if len(self.pieces) == 1 else None


class DiT(nn.Module):
    """Velocity model v(x_t, t | action, memory). Set `checkpointing` to trade compute for memory in training."""

    def __init__(self, cfg: DiTConfig) -> None:
        super().__init__()
        self.cfg, self.checkpointing = cfg, False
        block = BlockConfig(
            dim=cfg.dim, heads=cfg.heads, hidden=cfg.hidden, mlp=cfg.mlp, qk_norm=cfg.qk_norm, pairing=cfg.pairing,
            text=cfg.text > 0, rank=cfg.rank, fast=cfg.fast, eps=cfg.eps,
        )  # fmt: skip
        self.patch_in = nn.Linear(cfg.seen * cfg.patch**2, cfg.dim)
        if cfg.learned_position:
            self.position = nn.Parameter(torch.zeros(cfg.grid[0] * cfg.grid[1], cfg.dim))
        self.time = nn.Sequential(nn.Linear(cfg.time_width, cfg.dim), nn.SiLU(), nn.Linear(cfg.dim, cfg.dim))
        self.shared = nn.Linear(cfg.dim, 6 * cfg.dim)
        if cfg.actions:
            self.action_in = nn.Sequential(nn.Linear(cfg.actions, cfg.dim), nn.SiLU())
            self.null_action = nn.Parameter(torch.zeros(cfg.dim))
            self.action_out = nn.Linear(cfg.dim, cfg.dim)
            self.action_modulation = nn.Linear(cfg.dim, 6 * cfg.dim)
        if cfg.text:
            self.text = nn.Sequential(nn.Linear(cfg.text, cfg.dim), nn.GELU("tanh"), nn.Linear(cfg.dim, cfg.dim))
            if cfg.text_tokens:
                self.default_text = nn.Parameter(torch.zeros(cfg.text_tokens, cfg.text))
        self.blocks = nn.ModuleList(Block(block) for _ in range(cfg.depth))
        self.table_out = nn.Parameter(torch.zeros(2, cfg.dim))
        self.patch_out = nn.Linear(cfg.dim, cfg.channels * cfg.patch**2)
        self.rope = Rope3D(cfg.dim // cfg.heads, cfg.grid, cfg.theta, cfg.pairing)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        zero: list[Any] = [self.shared, self.patch_out]  # AdaLN-Zero: identity at first
        zero += [block.up for block in self.blocks] if self.cfg.rank else []
        zero += [self.action_out, self.action_modulation] if self.cfg.actions else []
        for module in zero:
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)

    @property
    def chunk(self) -> int:
        return self.cfg.chunk

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return (self.cfg.channels, *self.cfg.size)

    # -- what the engine calls: through forward(mode, ...), so that DDP and FSDP see every use of the parameters -------

    def forward(self, mode: Literal["prepare", "velocity", "remember", "clip"], *args: Any) -> Any:
        match mode:
            case "prepare":
                return self.prepare(*args)
            case "velocity":
                return self.velocity(*args)
            case "remember":
                return self.remember(*args)
            case "clip":
                return self.clip(*args)

    def empty_memory(self, config: Any, batch: int) -> Memory:
        """A memory of the given policy (a MemoryConfig) for `batch` rows, on this model's device.

        UserError where only one of model and memory has fast weights.
        """
        self.cfg.check_memory(config)
        return config.empty(self.cfg.geometry, batch, self.patch_in.weight)

    def prepare(self, control: DiTControl, state: State) -> Prepared:
        """Everything about (control, state) that does not change between sampler steps.

        The control covers F frames, a multiple of the chunk; several chunks see each other block-causally. Its rows
        are those of the state, or a multiple n B of them (row i continues state row i mod B): all n read one memory.
        """
        if control.batch % state.batch:
            raise ValueError(f"a control of {control.batch} rows for a state of {state.batch}")
        if state.frame.device != (device := self.patch_in.weight.device):
            raise ValueError(f"the state is on {state.frame.device}, the model on {device}: move it with state.to")
        copies = control.batch // state.batch
        frames = state.frame.repeat(copies)[:, None] + torch.arange(control.length, device=state.frame.device)
        last = None if state.last is None else state.last.repeat(copies, *(1,) * (state.last.ndim - 1))
        memory = state.memory
        if device.type != "cpu" or backend.setting() != "auto":
            whole = not isinstance(memory, Pieces)
            pieces = (memory.context(state.frame, self.rope),) if whole else memory.pieces(state.frame, self.rope)
            return replace(self._prepare(control, frames, pieces, self._visible(control.length)), last=last)
        past = memory.context(state.frame, self.rope)
        mask = self._mask(past, copies, control.length)  # made once per chunk
        prepared = replace(self._prepare(control, frames, (past,), mask), last=last)
        if not serves(self.blocks, past):
            return prepared
        return replace(prepared, cpu=CpuPass.of(self, prepared, copies, mask))

    def velocity(self, x_t: Tensor, t: Tensor, prepared: Prepared) -> Tensor:
        """Velocity [B, F, C, H, W] of noisy frames x_t [B, F, C, H, W] at flow times t [B, F]. Writes nothing."""
        return self._run(x_t, t, prepared)

    def remember(self, chunk: Chunk, state: State, time: float = 0.0) -> Memory:
        """The memory after a finished chunk: one pass at flow time `time` whose keys and values are stored.

        Rows that are inactive, and frames beyond `chunk.executed`, leave no trace.
        """
        prepared = self.prepare(chunk.control, state)
        t = torch.full(chunk.x.shape[:2], time, device=chunk.x.device)
        keys, values, written = self._kept(chunk.x, t, prepared)
        order = torch.arange(chunk.x.shape[1], device=chunk.x.device)
        keep = (order < chunk.executed[:, None]) & state.active[:, None]
        memory = state.memory.append(keys, values, chunk.start, keep, self.rope)
        if isinstance(memory, LactMemory) and self.cfg.fast is not None:
            memory = memory.learn(self._initial(), _stack(written), keep, self.cfg.fast.muon)
        return memory

    def clip(
        self,
        x_t: Tensor,
        t: Tensor,
        control: DiTControl,
        history: tuple[Tensor, Tensor] | None = None,
        memory: MemoryConfig | None = None,
        drop: Tensor | None = None,
    ) -> Tensor:
        """Velocity of many chunks of a clip in one pass: training, and the reference for cached rollouts.

        control covers a clip of T frames, a multiple of the chunk. Without `history`, x_t [B, T, C, H, W] at flow times
        t [B, T] is the whole clip and chunk i sees chunks 0..i of it (diffusion forcing). With history = (x_h
        [B, P, C, H, W], t_h [B, P]), the clip's first P frames, x_t [B, F, C, H, W] is its last F, and chunk i sees its
        own x_t and chunks 0..i-1 of x_h (teacher forcing). Returns a velocity for every frame of x_t.

        memory: chunks see of those before them what such a memory would hold; None for all. drop [B] bool: rows whose
        x_t comes without its condition although the history has it, as in the second branch of guidance.
        """
        length, made = control.length, x_t.shape[1]
        order = torch.arange(length, device=x_t.device)
        frames = order.expand(x_t.shape[0], -1)
        if history is None:
            prepared = self._prepare(control, frames, (), None)
            seen = self._clip_view(memory, length, made, None, self._features(x_t, t, prepared, memory))
            return self._run(x_t, t, replace(prepared, seen=seen.spans, turns=seen.turns))
        past = history[0].shape[1]
        both = torch.cat((order[:past], order[length - made :]))
        now = control.frames(length - made, length)
        first: Any = control.frames(0, past)  # of the same kind
        twice = first.join(now if drop is None else now.drop(drop))
        prepared = self._prepare(twice, frames[:, both], (), None)
        before = self._anchors(history[0], None), self._anchors(history[0], None, after=True)[:, length - made : length]
        seen = self._clip_view(memory, length, made, past, self._features(*history, prepared, memory))
        prepared = replace(prepared, seen=seen.spans, turns=seen.turns)
        x = torch.cat((history[0], x_t), 1)
        return self._run(x, torch.cat((history[1], t), 1), prepared, anchors=torch.cat(before, 1))[:, past:]

    # -- inside --------------------------------------------------------------------------------------------------------

    def _initial(self) -> FastWeights:
        """The initial fast weights of all layers, [L, 1, G, ...]."""
        layers = [cast(FastLayer, cast(Block, block).fast).initial for block in self.blocks]
        return FastWeights(*(torch.stack(each)[:, None] for each in zip(*layers, strict=True)))

    def _visible(self, frames: int) -> Visible:
        """The same as `_mask` for the kernels of attention, which read the past where it lies."""
        size = check_chunks(frames, self.cfg.chunk) * self.cfg.geometry.tokens
        return Visible(size if frames > self.cfg.chunk else 0)

    def _mask(self, past: Context, copies: int, frames: int) -> Tensor | None:
        """Which of [past, frames] every token looks at: what is there of the past, its own chunk and those before."""
        check_chunks(frames, self.cfg.chunk)
        if frames == self.cfg.chunk and past.valid.all():  # on a CPU nothing has to be waited for
            return None
        tokens = frames * self.cfg.geometry.tokens
        seen = past.valid.repeat(copies, 1)[:, None, None, :].expand(-1, 1, tokens, -1)
        chunk = torch.arange(tokens, device=seen.device) // (self.cfg.chunk * self.cfg.geometry.tokens)
        here = (chunk[:, None] >= chunk).expand(seen.shape[0], 1, -1, -1)
        return torch.cat((seen, here), -1)

    def _prepare(
        self, control: DiTControl, frames: Tensor, pieces: tuple[Context, ...], seen: Seen
    ) -> Prepared:  # fmt: skip
        action = modulation = text = None
        if self.cfg.condition or isinstance(control, ConditionControl):
            condition = self._condition(control)
            return Prepared(None, None, self.rope.table(frames), pieces, seen, None, condition=condition)
        if self.cfg.actions:
            has_action = control.has_action[..., None]
            given = control.action.masked_fill(~has_action, 0)  # whatever was there: NaN would spoil the gradient
            hidden = torch.where(has_action, self.action_in(given.to(self.null_action.dtype)), self.null_action)
            action, modulation = self.action_out(hidden), self.action_modulation(hidden).unflatten(-1, (6, -1))
        if self.cfg.text:
            if control.text is None and not self.cfg.text_tokens:
                raise ValueError("this model was built with text cross-attention: its control must carry text")
            words = self.default_text.expand(control.batch, -1, -1) if control.text is None else control.text
            features = self.text(words)
            blocks: Any = self.blocks
            text = tuple(block.cross.keys_values(features) for block in blocks)
        return Prepared(action, modulation, self.rope.table(frames), pieces, seen, text)

    def _condition(self, control: DiTControl) -> Tensor:
        needed = self.cfg.condition, *self.cfg.size
        if not isinstance(control, ConditionControl) or tuple(control.condition.shape[2:]) != needed:
            brings = list(control.condition.shape[2:]) if isinstance(control, ConditionControl) else "none"
            raise ValueError(f"a model of condition {list(needed)} per frame, the control brings {brings}")
        return control.condition

    def _anchors(self, x: Tensor, last: Tensor | None, after: bool = False) -> Tensor:
        """For every frame of x [B, F, ...], the last frame before its chunk; `after` adds those of one chunk more."""
        first = torch.zeros_like(x[:, :1]) if last is None else last[:, None].to(x.dtype)
        if x.shape[1] == self.cfg.chunk and not after:
            return first.expand_as(x)
        ends = torch.cat((first, x[:, self.cfg.chunk - 1 :: self.cfg.chunk]), 1)
        return (ends if after else ends[:, :-1]).repeat_interleave(self.cfg.chunk, 1)

    def _tokens(self, x: Tensor, t: Tensor, prepared: Prepared, anchors: Tensor | None) -> Tensor:
        """What goes into the first block, [B, F, n, D]."""
        p = self.cfg.patch
        seen = x if self.cfg.predicts == "velocity" else flow.expected(x, t)
        if self.cfg.anchor:
            seen = torch.cat((seen, self._anchors(x, prepared.last) if anchors is None else anchors), 2)
        if prepared.condition is not None:
            seen = torch.cat((seen, prepared.condition.to(x.dtype)), 2)
        h = self.patch_in(F.pixel_unshuffle(seen, p).flatten(3).transpose(2, 3))  # channels of a token: c p q
        return h + self.position if self.cfg.learned_position else h

    def _embed(self, x: Tensor, t: Tensor, prepared: Prepared, anchors: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The same tokens, the embedding [B, F, D] of flow times and actions, the shared modulation [B, F, 6, D]."""
        h = self._tokens(x, t, prepared, anchors)
        e = self.time(flow.embed_time(t, self.cfg.time_width).to(h.dtype))
        e = e if prepared.action is None else e + prepared.action
        shared = self.shared(F.silu(e)).unflatten(-1, (6, -1))
        return h, e, shared if prepared.modulation is None else shared + prepared.modulation

    def _clip_view(
        self, memory: MemoryConfig | None, length: int, made: int, past: int | None, features: Tensor
    ) -> ClipView:
        return view_clip(self.cfg.geometry, self.cfg.chunk, self.rope, memory, length, made, past, features)

    @torch.no_grad()
    def _features(self, x: Tensor, t: Tensor, prepared: Prepared, memory: MemoryConfig | None) -> Tensor:
        """What a memory compares the frames x [B, F, ...] by, [B, F, D]; they are the first F that are prepared."""
        if memory is None or not memory.compares:
            return x.new_zeros(1, x.shape[1], self.cfg.dim)
        length, block = x.shape[1], self.blocks[0]
        action, modulation, condition = (
            None if part is None else part[:, :length]
            for part in (prepared.action, prepared.modulation, prepared.condition)
        )
        first = replace(prepared, action=action, modulation=modulation, condition=condition)
        h, e, shared = self._embed(x, t, first, None)
        return mean_keys(cast(Block, block).keys(h, e, shared), self.cfg.geometry.tokens)

    def _run(self, x: Tensor, t: Tensor, prepared: Prepared, anchors: Tensor | None = None) -> Tensor:
        """The velocity."""
        cpu = _without_gradients(prepared)
        if cpu is not None:
            out = cpu(self._tokens(x, t, prepared, anchors), t)
        else:
            h, e, shared = self._embed(x, t, prepared, anchors)
            h = self._layers(h, e, shared, prepared)[0]
            shift, scale = (self.table_out + e[:, :, None].float()).unbind(2)
            out = self.patch_out(modulate(h, shift, scale, self.cfg.eps).to(x.dtype))
        made = F.pixel_shuffle(out.transpose(2, 3).unflatten(3, self.cfg.grid), self.cfg.patch)
        return made if self.cfg.predicts == "velocity" else flow.towards(made, x, t.clamp_min(LEAST_TIME))

    def _kept(self, x: Tensor, t: Tensor, prepared: Prepared) -> tuple[Tensor, Tensor, list[Written]]:
        """What the memory takes: keys (not rotated) and values [L, B, h, F * n, D / h], and for fast weights."""
        cpu = _without_gradients(prepared)
        if cpu is not None:
            return *cpu.kept(self._tokens(x, t, prepared, None), t), []
        h, e, shared = self._embed(x, t, prepared, None)
        _, keys, values, written = self._layers(h, e, shared, prepared, keep=True)
        return torch.stack(keys), torch.stack(values), written

    def _layers(
        self, h: Tensor, e: Tensor, shared: Tensor, prepared: Prepared, keep: bool = False
    ) -> tuple[Tensor, list[Tensor], list[Tensor], list[Written]]:
        """The tokens after all blocks and, with `keep`, what every layer has for the memory, which checkpointing could
        not free."""
        keys, values, written = [], [], []
        rope = prepared.rope[0][:, 0], prepared.rope[1][:, 0]
        heeded = isinstance(prepared.seen, Visible)  # else a mask tells what is there
        added = prepared.pieces[0].fast if prepared.pieces else None
        for i, block in enumerate(self.blocks):
            past = tuple(Segment(p.keys[i], p.values[i], p.valid if heeded else None) for p in prepared.pieces)
            text = None if prepared.text is None else prepared.text[i]
            fast = prepared.turns if added is None else FastWeights(*(w[i] for w in added))
            args = (h, e, shared, rope, past, prepared.seen, text, fast, keep)
            if self.checkpointing and torch.is_grad_enabled():
                made: Any = checkpoint(block, *args, use_reentrant=False, preserve_rng_state=False)  # draws nothing
                h, k, v, w = made
            else:
                h, k, v, w = block(*args)
            if keep:
                keys.append(k)
                values.append(v)
                written.append(w)
        return h, keys, values, written


def _without_gradients(prepared: Prepared) -> CpuPass | None:
    """The CPU's way through the blocks, unless this call records gradients, which it has none of."""
    return None if torch.is_grad_enabled() else prepared.cpu


def _stack(layers: list[Written]) -> Written:
    """What all layers write, with L in front."""
    keys, values, rates = (torch.stack([getattr(w, part) for w in layers]) for part in ("keys", "values", "rates"))
    beta = [w.beta for w in layers if w.beta is not None]
    return Written(keys, values, rates, torch.stack(beta) if beta else None)
