"""Small networks of our own that tell who a rendered face is: one to train with, another one to measure with.

They look at the middle of an aligned region, from the brows to the chin, and make unit vectors. Two architectures, so
that what fools one does not fool the other for the same reason.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel.errors import UserError
from worldmodel.folders import replaced
from worldmodel.models.world import made_in
from worldmodel.serial import check_config, from_json, read_json, to_json, write_json
from worldmodel.weights import build_with, read_tensors, write_tensors

FORMAT, KIND = 1, "face embedder"
FILES = ("config.json", "embedder.safetensors")
LEFT, TOP, SIDE = 0.16, 0.2, 0.68  # of the part of a region that is looked at
SEEN = 44  # pixels of its sides
PATCH = 4


@dataclass(frozen=True, slots=True)
class EmbedderConfig:
    """kind: `residual`, convolutions with shortcuts, or `mixer`, patches that are mixed by perceptrons (MLP-Mixer,
    2105.01601). width: channels of the first stage, or of a patch. dim: of the embedding."""

    kind: Literal["residual", "mixer"] = "residual"
    width: int = 32
    dim: int = 64

    def __post_init__(self) -> None:
        if not (8 <= self.width <= 1024 and self.width % 8 == 0 and 2 <= self.dim <= 4096):
            raise UserError(
                f"face embedder: width {self.width} must be a multiple of 8 in [8, 1024], dim {self.dim} in [2, 4096]"
            )

    def build(self) -> "Embedder":
        return Embedder(self)


class Embedder(nn.Module):
    """Aligned regions [N, 3, S, S] in -1..1 -> unit vectors [N, dim]. Can be differentiated by the regions."""

    def __init__(self, cfg: EmbedderConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.body = _residual(cfg) if cfg.kind == "residual" else _mixer(cfg)

    def forward(self, regions: Tensor) -> Tensor:
        return F.normalize(self.body(middle(regions)), dim=-1)


def middle(regions: Tensor) -> Tensor:
    """The part of regions [N, 3, S, S] that is looked at, [N, 3, SEEN, SEEN]."""
    size = regions.shape[-1]
    left, top, side = round(LEFT * size), round(TOP * size), round(SIDE * size)
    part = regions[..., top : top + side, left : left + side]
    if side == SEEN:
        return part
    return F.interpolate(part, (SEEN, SEEN), mode="bilinear", align_corners=False, antialias=side > SEEN)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.gelu(self.first(F.gelu(self.norm(x)))))


def _residual(cfg: EmbedderConfig) -> nn.Module:
    w, last = cfg.width, 8
    return nn.Sequential(
        nn.Conv2d(3, w, 5, stride=2, padding=2), Residual(w),
        nn.Conv2d(w, 2 * w, 3, stride=2, padding=1), Residual(2 * w),
        nn.Conv2d(2 * w, 3 * w, 3, stride=2, padding=1), Residual(3 * w),
        nn.GroupNorm(8, 3 * w), nn.GELU(), nn.Conv2d(3 * w, 8 * last, 1),
        nn.Flatten(), nn.Linear(8 * last * 36, cfg.dim),
    )  # fmt: skip


class Mixing(nn.Module):
    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.across, self.within = nn.LayerNorm(width), nn.LayerNorm(width)
        self.patches = nn.Sequential(nn.Linear(patches, patches // 2), nn.GELU(), nn.Linear(patches // 2, patches))
        self.channels = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.patches(self.across(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.within(x))


class Patches(nn.Module):
    """[N, 3, SEEN, SEEN] -> [N, patches, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, PATCH, stride=PATCH)

    def forward(self, x: Tensor) -> Tensor:
        return self.cut(x).flatten(2).transpose(1, 2)


def _mixer(cfg: EmbedderConfig) -> nn.Module:
    patches, w = (SEEN // PATCH) ** 2, cfg.width
    blocks = [Mixing(patches, w) for _ in range(4)]
    return nn.Sequential(
        Patches(w), *blocks, nn.LayerNorm(w), nn.Linear(w, 16), nn.Flatten(), nn.Linear(16 * patches, cfg.dim)
    )


@dataclass(frozen=True, slots=True)
class FaceEmbedder:
    """A trained embedder in a folder, with what its training said about it."""

    model: Embedder
    card: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the folder; an older embedder in it is replaced as a whole, other files stay."""
        with replaced(folder, FILES) as beside:
            write_tensors(self.model.state_dict(), beside / FILES[1])
            config = {"format": FORMAT, "kind": KIND, "embedder": to_json(self.model.cfg), "card": self.card}
            write_json(config, beside / FILES[0])

    @classmethod
    def find(cls, folder: Path) -> "FaceEmbedder":
        """Load an embedder, or what the run in a folder has made so far; frozen, in evaluation mode. Anything missing
        or broken is a UserError."""
        path = made_in(folder) / FILES[0]
        config = check_config(read_json(path), KIND, FORMAT, path, keys=("embedder",))
        cfg: EmbedderConfig = from_json(config["embedder"], EmbedderConfig, f"{path}: embedder")
        weights = path.with_name(FILES[1])
        model = build_with(cfg.build, read_tensors(weights), str(weights))
        return cls(model.eval().requires_grad_(False), config.get("card", {}))

    @torch.no_grad()
    def embed(self, regions: Tensor) -> Tensor:
        """Aligned regions [..., 3, S, S] in -1..1 -> unit vectors [..., dim]."""
        return self.model(regions.flatten(0, -4)).unflatten(0, regions.shape[:-3])
