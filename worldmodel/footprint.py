"""How many bytes and operations a training step of a DiT takes, from its shapes alone.

The counts follow the reference operations in kernels/ and what PyTorch keeps for the backward pass; fused kernels keep
less. Shape letters: B rows, F frames that the model sees, S tokens of a row, N = B S, D width, M hidden width, L text
tokens, h heads.
"""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from worldmodel.fast_footprint import fast_activations, fast_operations
from worldmodel.kernels.attention import Span
from worldmodel.memory import MemoryConfig
from worldmodel.models.clip_view import ClipView, view_clip
from worldmodel.models.dit import DiT
from worldmodel.models.fast_layer import Turn
from worldmodel.models.layers import Block
from worldmodel.models.lora import LoraLinear
from worldmodel.objectives.flow_matching import FlowMatching

Precision = Literal["fp32", "bf16"]
BACKWARD_OF_ATTENTION = 2.5  # in units of the forward pass: fused attention computes the scores a second time


@dataclass(frozen=True, slots=True)
class Shapes:
    """The sizes of one forward pass."""

    rows: int
    frames: int  # of a clip
    history: int | None  # clean frames that the model sees beside those that it denoises, with teacher forcing
    made: int  # frames that it denoises
    text: int  # text tokens of a row
    precision: Precision
    memory: MemoryConfig | None = None  # that limits what the chunks of a clip see
    past: int | None = None  # frames of a memory that all of one chunk look at, in a rollout
    written: bool = False  # whether that chunk is clean and written to the memory

    @classmethod
    def of(
        cls, rows: int, frames: int, chunk: int, objective: FlowMatching, text: int, precision: Precision,
        memory: MemoryConfig | None = None,
    ) -> "Shapes":  # fmt: skip
        """Of clips [rows, frames, ...] under an objective."""
        if objective.chunk_noise != "teacher":
            return cls(rows, frames, None, frames, text, precision, memory)
        return cls(rows, frames, frames - chunk, frames - objective.context * chunk, text, precision, memory)

    @property
    def seen(self) -> int:
        """Frames that the model sees, F."""
        return (self.history or 0) + self.made

    def view(self, model: DiT) -> ClipView:
        """Which keys the queries of a row look at; a memory's frames come first, in places that may be empty yet. And
        the turns of fast weights, none without them.
        """
        cfg, n = model.cfg, model.cfg.geometry.tokens
        if self.past is None:
            found = view_clip(cfg.geometry, cfg.chunk, model.rope, self.memory, self.frames, self.made, self.history)
            return ClipView(found.spans, found.turns or ())
        start, end, own = self.past * n, (self.past + self.made) * n, (0, self.made * n)
        turns = (Turn((own,), own if self.written else None),) if cfg.fast is not None else ()
        return ClipView((Span(queries=own, keys=((0, start), (start, end))),), turns)

    @property
    def compared(self) -> int:
        """Frames that the first layer's keys are made of beforehand, for a memory that compares them."""
        compares = self.past is None and self.memory is not None and self.memory.compares
        return (self.frames if self.history is None else self.history) if compares else 0

    @property
    def bytes(self) -> int:
        """Of one activation under autocast."""
        return 2 if self.precision == "bf16" else 4


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes that one forward pass keeps for the backward pass."""

    block: int  # one block, everything
    carried: int  # of a block under activation checkpointing: its input
    shared: int  # of all blocks under activation checkpointing: their modulation
    text: int  # keys and values of all layers
    edges: int  # embeddings, positions, last layer, loss
    backward: int  # gradients of activations that are there at once, beyond what is freed meanwhile

    def held(self, depth: int, checkpointing: bool) -> int:
        """At the end of the forward pass."""
        blocks = depth * self.carried + self.shared if checkpointing else depth * self.block
        return blocks + self.text + self.edges

    def peak(self, depth: int, checkpointing: bool) -> int:
        """During the backward pass: with checkpointing one block at a time is there in full."""
        return self.held(depth, checkpointing) + self.backward + (self.block if checkpointing else 0)


def activations(model: DiT, shapes: Shapes) -> Activations:
    """model: on any device, the meta device included; with or without adapters."""
    cfg, a = model.cfg, shapes.bytes
    b, f, n, h = shapes.rows, shapes.seen, cfg.geometry.tokens, cfg.heads
    tokens = b * f * n
    width = tokens * cfg.dim
    norm = 4 * tokens * (h if cfg.qk_norm == "head" else 1)  # reciprocal root mean squares
    block = _block(model)
    frames = 4 * b * f * cfg.dim

    def modulated(layer: nn.Module) -> int:  # x, LayerNorm(x), its statistics, the input of the layer
        return 8 * width + 8 * tokens + frames + (a * width if _trains(layer) else 0)

    def normed(weight: nn.Module, copy: bool) -> int:  # input and normalised input of an RMSNorm, in fp32
        return norm + 4 * width * (_trains(weight) + copy)

    attention = modulated(block.qkv) + 3 * a * width
    attention += normed(block.norm_q, a == 2) + normed(block.norm_k, a == 2)
    attention += 3 * a * width + 4 * tokens * h  # rotated q and k, output, log-sum-exp
    view = shapes.view(model)
    attention += 2 * a * b * cfg.dim * sum(_joined(span) for span in view.spans)
    if shapes.past is not None:  # a mask instead of spans, as floats
        attention += a * b * sum(_pairs(span) for span in view.spans)
    attention += a * b * sum(_keys(span) for span in view.spans if span.moved is not None)  # a mask of keys
    attention += (a * width if _trains(block.out) else 0) + 4 * width  # and what the gate multiplies
    cross = 0
    if block.cross is not None:
        cross = 4 * width + 8 * tokens + (a * width if _trains(block.cross.q) else 0)
        cross += normed(block.cross.norm_q, copy=True) + 2 * a * width + 4 * tokens * h
    hidden = a * tokens * cfg.hidden
    mlp = modulated(block.mlp.up) + 4 * width + hidden * (3 if block.mlp.gated else 1)
    mlp += hidden if _trains(block.mlp.down) else 0
    fast = 0
    if block.fast is not None:
        fast = fast_activations(block.fast, b, f * n, view.turns or (), shapes.written, a)
    adapters = sum(a * tokens * len(m.lora_a) for m in block.modules() if isinstance(m, LoraLinear))
    return Activations(
        block=attention + fast + cross + mlp + 6 * frames + adapters,
        carried=a * width,
        shared=a * 6 * b * f * cfg.dim,
        text=_text(model, shapes),
        edges=_edges(model, shapes),
        backward=12 * width,
    )


def _joined(span: Span) -> int:
    """Keys of a span that attention copies to lie beside each other."""
    return _keys(span) if len(span.keys) > 1 or span.moved is not None else 0


def _pairs(span: Span) -> int:
    """Of a query and a key that it looks at."""
    start, end = span.queries
    return (end - start) * _keys(span)


def _keys(span: Span) -> int:
    return sum(last - first for first, last in span.keys) + _moved(span)


def _moved(span: Span) -> int:
    """Keys of a span that are read elsewhere in time than where they were."""
    return 0 if span.moved is None else span.moved.tokens.shape[1]


def _block(model: DiT) -> Block:
    """The first of the blocks, which are all alike."""
    block = model.blocks[0]
    assert isinstance(block, Block)
    return block


def _text(model: DiT, shapes: Shapes) -> int:
    cfg, cross = model.cfg, _block(model).cross
    if cross is None:
        return 0
    a, words = shapes.bytes, shapes.rows * shapes.text
    each = words * cfg.dim
    layer = 3 * a * each + 4 * words * (cfg.heads if cfg.qk_norm == "head" else 1)  # keys and values, normed keys
    layer += 4 * each * (_trains(cross.norm_k) + (_trains(cross.kv) and a == 2))
    embedding = a * words * (cfg.text + 3 * cfg.dim) if _trains(model.text) else a * each
    return cfg.depth * layer + embedding


def _edges(model: DiT, shapes: Shapes) -> int:
    cfg, a = model.cfg, shapes.bytes
    s = shapes.seen * cfg.geometry.tokens
    tokens, frame = shapes.rows * s, 4 * shapes.rows * cfg.channels * cfg.size[0] * cfg.size[1]
    rope = 4 * tokens * (cfg.dim // cfg.heads)
    embedding = a * tokens * model.patch_in.in_features if _trains(model.patch_in) else 0
    time = 4 * shapes.rows * shapes.seen * (cfg.time_width + 9 * cfg.dim if _trains(model.time) else 4 * cfg.dim)
    last = (8 + (a if _trains(model.patch_out) else 0)) * tokens * cfg.dim + 8 * tokens
    loss = frame * shapes.made  # the error of the velocity
    moved = sum(_moved(span) for span in shapes.view(model).spans)
    moves = shapes.rows * moved * (4 * cfg.dim // cfg.heads + 8)  # angles and places
    return rope + embedding + time + last + loss + moves


def _gradient_to_input(model: DiT, name: str) -> bool:
    """Whether the backward pass of a linear layer goes on to its input: not where nothing before it is trained."""
    if name in ("patch_in", "time.0", "action_in.0", "text.0"):
        return False
    if name == "time.2":
        return _trains(model.time[0])
    if name == "text.2":
        return _trains(model.text[0])
    return _trains(model.text) if name.endswith("cross.kv") else True


def _trains(module: nn.Module) -> bool:
    """Whether anything in it is trained; a linear layer keeps its input for that, and only for that."""
    return any(p.requires_grad for p in module.parameters())


@dataclass(frozen=True, slots=True)
class Operations:
    """Floating-point operations of one forward and backward pass; a multiplication and an addition are two."""

    forward: float
    backward: float
    again: float  # the blocks once more, with activation checkpointing

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.again

    def __add__(self, other: "Operations") -> "Operations":
        return Operations(self.forward + other.forward, self.backward + other.backward, self.again + other.again)

    def times(self, count: float) -> "Operations":
        return Operations(count * self.forward, count * self.backward, count * self.again)

    @property
    def without_gradient(self) -> "Operations":
        return Operations(self.forward, 0.0, 0.0)


NOTHING = Operations(0.0, 0.0, 0.0)


def operations(model: DiT, shapes: Shapes, checkpointing: bool, calls: int = 1) -> Operations:
    """Of matrix products and attention; the rest is below 1 % of them and bound by memory.

    calls: of the velocity after one preparation of actions and text, as a sampler makes them.
    """
    cfg = model.cfg
    tokens = shapes.rows * shapes.seen * cfg.geometry.tokens
    words, frames = shapes.rows * shapes.text, shapes.rows * shapes.seen
    view, fast = shapes.view(model), _block(model).fast
    pairs = sum(_pairs(span) for span in view.spans) * shapes.rows + tokens * shapes.text
    scores = 4.0 * pairs * cfg.dim * calls
    forward, backward = cfg.depth * scores, BACKWARD_OF_ATTENTION * cfg.depth * scores
    if fast is not None:
        there, back = fast_operations(fast, shapes.rows, view.turns or (), kept=shapes.written)
        forward, backward = forward + cfg.depth * calls * there, backward + cfg.depth * calls * back
    blocks = forward
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.Linear):
            continue
        rows = frames
        if name.startswith("text.") or name.endswith("cross.kv"):
            rows = words
        elif name.startswith("patch") or (name.startswith("blocks.") and name.split(".")[2] not in ("down", "up")):
            rows = tokens
        rows *= 1 if name.startswith(("action_", "text.")) or name.endswith("cross.kv") else calls
        to_input = _gradient_to_input(model, name)
        once = 2.0 * rows * layer.in_features * layer.out_features
        adapter = 0.0
        if isinstance(layer, LoraLinear):
            adapter = 2.0 * rows * len(layer.lora_a) * (layer.in_features + layer.out_features)
        forward += once + adapter
        backward += once * (layer.weight.requires_grad + to_input) + 2 * adapter
        blocks += (once + adapter) * (name.startswith("blocks.") and not name.endswith("cross.kv"))
    forward += _comparing(model, shapes)
    return Operations(forward, backward, blocks if checkpointing else 0.0)


def _comparing(model: DiT, shapes: Shapes) -> float:
    """Operations without gradient for what a memory compares frames by: embeddings and the first layer's projection."""
    block, frames, found = _block(model), shapes.rows * shapes.compared, 0.0
    of_frame = [*model.time, model.shared, *((block.down, block.up) if block.cfg.rank else ())]
    for layers, rows in ((of_frame, frames), ((model.patch_in, block.qkv), frames * model.cfg.geometry.tokens)):
        for layer in layers:
            if isinstance(layer, nn.Linear):
                found += 2.0 * rows * layer.in_features * layer.out_features
            if isinstance(layer, LoraLinear):
                found += 2.0 * rows * len(layer.lora_a) * (layer.in_features + layer.out_features)
    return found
