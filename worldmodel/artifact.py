"""What a run makes: a world model or a tokenizer, as the folder that every other command loads."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from worldmodel.chunk import Clip
from worldmodel.errors import UserError
from worldmodel.generate import write_comparison
from worldmodel.models.autoencoder import Autoencoder, AutoencoderConfig
from worldmodel.models.dit import DiT, DiTConfig
from worldmodel.models.lora import add_lora, merge_lora
from worldmodel.models.text import read_text
from worldmodel.models.tokenizer import Tokenizer
from worldmodel.models.tokenizer_folder import load_tokenizer
from worldmodel.models.wan import load_wan
from worldmodel.models.world import WorldModel, made_in
from worldmodel.objectives.reconstruction import Reconstruction
from worldmodel.pixels import enlarge, to_uint8, write_video
from worldmodel.run import Run
from worldmodel.serial import read_json
from worldmodel.weights import load_into

STATISTICS_BATCHES, STARTS = 16, 8


def build(run: Run, frozen: torch.dtype = torch.float32) -> nn.Module:
    """The model that a run trains, at its step 0: new or pretrained weights, adapters where it has them.

    frozen: type of the weights below adapters, which are fp32 themselves. To merge adapters, leave it at fp32.
    """
    check(run)
    if isinstance(run.model, AutoencoderConfig):
        return run.model.build()
    dtype = torch.float32 if run.lora is None else frozen
    text = None if run.text is None else read_text(run.text)
    model = run.model.build().to(dtype) if run.init is None else _pretrained(run.model, run.init, text, dtype)
    return model if run.lora is None else add_lora(model, run.lora)


def _pretrained(cfg: DiTConfig, init: str, text: Tensor | None, dtype: torch.dtype) -> DiT:
    """The weights of a world model's folder or a run's, or of a diffusers Wan transformer (folder or hub name)."""
    folder = made_in(Path(init))
    if Path(init).is_dir() and not any((folder / part / "config.json").is_file() for part in ("", "transformer")):
        raise UserError(
            f"{init}: holds no model; init is the folder of a world model, of a run that has made one, or of a "
            "diffusers Wan transformer"
        )
    config = folder / "config.json"
    found = read_json(config) if config.is_file() else {}
    if not isinstance(found, dict):
        raise UserError(f"{config}: expected an object, found {type(found).__name__}")
    if found.get("kind") == "world model":
        model = _with_fast(WorldModel.load(folder).dit, cfg).to(dtype).requires_grad_(True).train()
    else:
        tokens = 0 if text is not None else cfg.text_tokens
        sizes = {"size": cfg.size, "chunk": cfg.chunk, "actions": cfg.actions}
        model = load_wan(init, **sizes, text=text, text_tokens=tokens, dtype=dtype)
    if model.cfg != cfg:
        pairs = ((f.name, getattr(model.cfg, f.name), getattr(cfg, f.name)) for f in dataclasses.fields(cfg))
        name, found, wanted = next(p for p in pairs if p[1] != p[2])
        raise UserError(f"{init}: its {name} is {found}, the run's model.{name} is {wanted}")
    return model


def _with_fast(model: DiT, cfg: DiTConfig) -> DiT:
    """The model with new fast weights as in `cfg`, whose share starts at zero, if it has none and is to have them."""
    if cfg.fast is None or model.cfg.fast is not None:
        return model
    new = dataclasses.replace(model.cfg, fast=cfg.fast).build()
    fresh = {name: value for name, value in new.state_dict().items() if ".fast." in name}
    new.load_state_dict({**fresh, **model.state_dict()})
    return new


@dataclass(frozen=True, slots=True)
class Template:
    """What all models that a run makes have in common: built and read once, then filled with weights at every save.

    It holds the model in fp32 on the CPU, 4 bytes per weight.
    """

    run: Run
    model: nn.Module  # as at step 0
    trained: frozenset[str]
    tokenizer: Tokenizer | None  # of a world model
    example: Clip
    starts: Clip

    @classmethod
    def of(cls, run: Run) -> "Template":
        """UserErrors of what does not fit, and of files that cannot be read."""
        model = build(run)
        trained = frozenset(name for name, p in model.named_parameters() if p.requires_grad)
        tokenizer: Any = None if isinstance(model, Autoencoder) else load_tokenizer(run.data.tokenizer)  # a module
        if tokenizer is not None:
            tokenizer.eval().requires_grad_(False)
        example = _example(run)
        return cls(run, model, trained, tokenizer, example, _starts(run, example))

    def fill(self, weights: dict[str, Tensor], card: dict[str, Any]) -> WorldModel | Autoencoder:
        """The model with the given trained weights, ready to be used until the next call; adapters are merged."""
        fixed = {name: t for name, t in self.model.state_dict().items() if name not in self.trained}
        load_into(self.model, {**fixed, **weights}, str(self.run.out))
        model = (self.model if self.run.lora is None else merge_lora(self.model)).eval().requires_grad_(False)
        if isinstance(model, Autoencoder):
            batches = self.run.data.batches(0, 0, 1, 1)
            model.measure_latents(next(batches)[0].x.flatten(0, 1) for _ in range(STATISTICS_BATCHES))
            return model
        assert isinstance(model, DiT) and self.tokenizer is not None
        return WorldModel(
            dit=model,
            tokenizer=self.tokenizer,
            actions=self.run.data.action_spec,
            fps=self.run.data.fps,
            stream=self.run.stream,
            starts=self.starts,
            card=card,
        )

    def look(self, made: WorldModel | Autoencoder, video: Path) -> None:
        """A short video of what it can do on held-out data: real above generated or reconstructed."""
        if isinstance(made, WorldModel):
            write_comparison(made, self.example, video)
            return
        frames = self.example.x.flatten(0, 1)[:64, None]
        pair = np.concatenate([to_uint8(frames), to_uint8(made.decode(made.encode(frames)))], 2)
        write_video(video, enlarge(pair[:, 0], 3), 4)


def _example(run: Run) -> Clip:
    """A batch of held-out clips; of training clips where the run holds nothing out."""
    return next(iter(run.data.validation_batches(1))) if run.validate else next(run.data.batches(0, 0, 1, 1))[0]


def _starts(run: Run, clip: Clip) -> Clip:
    """Held-out beginnings, so that the model can be streamed wherever it is taken."""
    chunk = run.model.chunk if isinstance(run.model, DiTConfig) else 1
    detail = clip.x[:, -1].flatten(1).std(1)
    rows = detail.argsort(descending=True)[:STARTS]  # a beginning that shows something comes first
    return clip.select(rows).frames(0, clip.x.shape[1] // chunk * chunk)


def check(run: Run) -> None:
    """The run's parts must fit each other; what does not is a UserError that names both sides."""
    clip = _example(run)
    frame = tuple(clip.x.shape[2:])
    if isinstance(run.model, AutoencoderConfig) != isinstance(run.objective, Reconstruction):
        raise UserError(f"objective {type(run.objective).__name__} does not train a {type(run.model).__name__}")
    if isinstance(run.model, AutoencoderConfig):
        factor = 2 ** len(run.model.widths)
        if frame[0] != 3 or frame[1] % factor or frame[2] % factor:
            raise UserError(
                f"an autoencoder of factor {factor} learns from RGB pictures, the data's frames are {frame}"
            )
        return
    if run.model.condition:
        raise UserError(f"model.condition is {run.model.condition}, a world model's controls are actions: it must be 0")
    spec, size = run.data.action_spec, (run.model.channels, *run.model.size)
    if run.model.actions != (spec.size if spec else 0):
        raise UserError(
            f"model.actions is {run.model.actions}, the data's actions have size {spec.size if spec else 0}"
        )
    if frame != size:
        raise UserError(f"model.channels and model.size are {size}, the latents are {frame}")
    if clip.x.shape[1] % run.model.chunk:
        raise UserError(f"clips of {clip.x.shape[1]} frames do not cut into chunks of model.chunk = {run.model.chunk}")
    run.stream.check(run.model)
    run.stream.check_readable()
