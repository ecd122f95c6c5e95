"""A run: everything that one training needs, as one value. A file in configs/ is a function that returns it."""

import importlib.util
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from worldmodel.actions import ActionSpec
from worldmodel.chunk import Clip
from worldmodel.errors import UserError
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.lora import LoraConfig
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.base import Objective
from worldmodel.objectives.flow_matching import FlowMatching
from worldmodel.objectives.frechet_forcing import FrechetForcing
from worldmodel.objectives.hero import Hero
from worldmodel.objectives.pushforward import Pushforward
from worldmodel.objectives.reconstruction import Reconstruction
from worldmodel.objectives.self_forcing import SelfForcing
from worldmodel.optim import AdamW, Muon, Schedule


class Data(Protocol):
    """Training data as a run sees it: clips that are a pure function of the step."""

    @property
    def batch(self) -> int:
        """Clips per step, over all processes."""
        ...

    @property
    def length(self) -> int:
        """Latent frames of a clip, of the longest ones."""
        ...

    @property
    def curriculum(self) -> tuple[tuple[int, int], ...]:
        """Pairs (step, length): shorter clips until that step; () for one length throughout."""
        ...

    @property
    def fps(self) -> float:
        """Pixel frames per second."""
        ...

    @property
    def tokenizer(self) -> Path:
        """Folder of the tokenizer that made the latents."""
        ...

    @property
    def weights(self) -> tuple[float, ...]:
        """How often clips come from each of the data's parts, up to a factor; () as the parts are."""
        ...

    @property
    def action_spec(self) -> ActionSpec | None: ...

    @property
    def split(self) -> dict[str, Any]:
        """Which episodes train and which validate."""
        ...

    def batches(self, first_step: int, rank: int, world: int, micro: int) -> Iterator[list[Clip]]:
        """From `first_step` on, this rank's share of every step's clips, cut into `micro` micro-batches."""
        ...

    def validation_batches(self, count: int) -> Iterator[Clip]:
        """`count` fixed batches of held-out clips."""
        ...


class Batches(Protocol):
    """What the training loop asks of any data: clips that are a pure function of the step."""

    def batches(self, first_step: int, rank: int, world: int, micro: int) -> Iterator[list[Clip]]:
        """From `first_step` on, this rank's share of every step's clips, cut into `micro` micro-batches."""
        ...

    def validation_batches(self, count: int) -> Iterator[Clip]:
        """`count` fixed batches of held-out clips."""
        ...


class Made(Protocol):
    """What a training makes: a folder that other commands load."""

    def save(self, folder: Path) -> None: ...


class Template(Protocol):
    """What all models that a training makes have in common: filled with weights at every save."""

    def fill(self, weights: dict[str, Tensor], card: dict[str, Any]) -> Made:
        """The model with the given trained weights, ready to be used until the next call."""
        ...

    def look(self, made: Any, video: Path) -> None:
        """A short video of what it can do."""
        ...


@dataclass(frozen=True, kw_only=True)
class Training:
    """What the loop asks of any training. Every field can be overridden on the command line.

    micro: micro-batches per step (gradient accumulation). ema: decay of the averaged weights, 0 for none. threads: of
    the CPU. validate: held-out batches per validation, 0 for none. log_every, save_every, validate_every, sample_every:
    in steps; 0 only at the end.
    """

    out: Path
    optimizer: AdamW | Muon = field(default_factory=AdamW)
    schedule: Schedule = field(default_factory=Schedule)
    steps: int = 1000
    micro: int = 1
    clip_grad: float = 1.0
    ema: float = 0.999
    precision: Literal["fp32", "bf16"] = "fp32"
    threads: int | None = None
    seed: int = 0
    log_every: int = 10
    save_every: int = 200
    validate_every: int = 200
    validate: int = 4
    sample_every: int = 1000

    def __post_init__(self) -> None:
        for name, least in (("steps", 0), ("micro", 1), ("validate", 0), ("log_every", 1)):
            if getattr(self, name) < least:
                raise UserError(f"run: {name} must be at least {least}, not {getattr(self, name)}")
        for name in ("save_every", "validate_every", "sample_every"):
            if getattr(self, name) < 0:
                raise UserError(f"run: {name} must be at least 0, not {getattr(self, name)}")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise UserError(f"run: threads must be in [1, 1024], not {self.threads}")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"run: seed must be in [0, 2**63), not {self.seed}")
        if not 0 <= self.ema < 1 or not self.clip_grad > 0:
            raise UserError(f"run: ema {self.ema} must be in [0, 1) and clip_grad {self.clip_grad} above 0")


class Recipe(ABC):
    """What the loop asks of a training beside its numbers: a policy's run brings it, `recipe_of` makes a `Run`'s."""

    @property
    @abstractmethod
    def batches(self) -> Batches:
        """The data."""

    @abstractmethod
    def build(self) -> nn.Module:
        """The model at step 0; the run's parts must fit each other, what does not is a UserError."""

    @abstractmethod
    def build_objective(self, model: nn.Module, add: Callable[[str, nn.Module], nn.Module]) -> Objective:
        """The objective over the role `model`, which may be wrapped and forwards (mode, ...).

        add: trains another module as the role of that name, and returns it wrapped.
        """

    @abstractmethod
    def template(self) -> Template: ...

    @property
    @abstractmethod
    def next_command(self) -> str:
        """What a person would type after the training, without the program's name."""

    @abstractmethod
    def identity(self, frozen: str | None) -> dict[str, Any]:
        """What a checkpoint is continued under, beside what all trainings have: names of options to values.

        frozen: fingerprint of the weights that are not trained, if there are any.
        """

    @property
    def compiles(self) -> bool:
        """Whether the first step compiles the model."""
        return False

    @property
    def saves_memory(self) -> str:
        """What to do when memory runs out, before "raise micro ..."; may be empty."""
        return ""

    def seconds_per_chunk(self, step: int, clip: Clip, seconds: float) -> float | None:
        """Of a step that took that long, where its rollouts have a known length."""
        return None


@dataclass(frozen=True, kw_only=True)
class Run[D: Data](Training):
    """The training of a world model or a tokenizer.

    init: where the transformer's weights start: a world model's folder, that of a run which has made one (without fast
    weights, it gets new ones where `model` has them), a diffusers Wan transformer's folder or its name on the hub.
    text: features that a pretrained text-to-video model attends to (models/text.py makes it); without, zeros. lora:
    train adapters on the frozen weights of init; what the run makes has them merged. checkpointing, compile: of the
    transformer's blocks. For all else see `Training`.
    """

    data: D
    model: DiTConfig | AutoencoderConfig
    objective: FlowMatching | FrechetForcing | SelfForcing | Hero | Pushforward | Reconstruction = field(
        default_factory=FlowMatching
    )
    stream: StreamConfig = field(default_factory=StreamConfig)
    checkpointing: bool = False
    compile: bool = False
    init: str | None = None
    text: Path | None = None
    lora: LoraConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lora is not None and self.init is None:
            raise UserError(
                "run: lora adapts pretrained weights, which init must name; or train all of it (--lora None)"
            )


def load(path: Path | str) -> Run:
    """The Run that a file in configs/ describes. A mistake in the file is a UserError that names its line."""
    run = load_training(path)
    if not isinstance(run, Run):
        raise UserError(f"{path}: is the training of another kind of model ({type(run).__name__}), not a Run")
    return run


def load_training(path: Path | str) -> Training:
    """The same for a training of any kind of model: a `Run`, or one that is a `Recipe` itself."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such configuration; a run is a Python file with a function run() -> Run")
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: not a Python file; a run is a Python file with a function run() -> Run")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        make = getattr(module, "run", None)
        run = make() if callable(make) else None
    except UserError as error:  # of a value, which it names
        raise UserError(f"{_place(path, error)}: {error}") from error
    except Exception as error:  # the file is a program: anything may go wrong in it
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UserError(f"{_place(path, error)}: {type(error).__name__}: {' '.join(text.split())}") from error
    if not (isinstance(run, Training) and isinstance(run, Run | Recipe)):
        raise UserError(f"{path}: has no function run() that returns a Run")
    return run


def _place(path: Path, error: Exception) -> str:
    """The file, and the last of its lines that led to the error."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    if isinstance(error, SyntaxError) and error.filename is not None and Path(error.filename) == path:
        lines.append(error.lineno)
    return f"{path}:{lines[-1]}" if lines and lines[-1] else str(path)
