"""Any policy of lerobot in our rollout, evaluation and serving: a model whose chunks are made by lerobot's own code.

To the engine it is a model with a sampler of its own: that hands the observation to the policy's preprocessor, asks
the policy for a chunk, and its postprocessor for actions in the robot's units. Whatever the policy draws (diffusion
noise, flow noise, latents) comes from a generator that is seeded by the row's seed and the moment, and rows go through
the policy one by one: an answer depends on neither the other rows nor their number.

Letters: B rows, K actions of a chunk, A numbers of an action, N cameras.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worldmodel import noise
from worldmodel.chunk import Chunk
from worldmodel.errors import UserError
from worldmodel.memory import Geometry, Memory, MemoryConfig
from worldmodel.models.world import check_device
from worldmodel.policies.lerobot_folder import ACTION, STATE, TASK, LeRobotFolder
from worldmodel.policies.lerobot_interface import LeRobotInterface, interface_of
from worldmodel.policies.observation import Interface, Observation
from worldmodel.policies.planning import Chunking
from worldmodel.state import State

# What lerobot raises for files that do not fit.
BUILDING = (ValueError, RuntimeError, OSError, KeyError, TypeError, AssertionError)


class LeRobotModel:
    """A policy of lerobot with its processors, as the engine sees a model. history: observations that it looks at."""

    def __init__(
        self,
        policy: Any,
        preprocess: Callable[[dict[str, Any]], dict[str, Any]],
        postprocess: Callable[[Tensor], Tensor],
        cameras: dict[str, str],
        interface: LeRobotInterface,
    ) -> None:
        self.policy, self.preprocess, self.postprocess = policy, preprocess, postprocess
        self.cameras, self.interface = cameras, interface
        self.history = int(policy.config.n_obs_steps)
        self.device = torch.device(policy.config.device)
        zero = torch.zeros(1, dtype=torch.long)
        self.chunk = self.make(self._blank(), zero, zero).shape[1]

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return (len(self.interface.action.names),)

    def empty_memory(self, config: MemoryConfig, batch: int) -> Memory:
        """The memory `config` for B rows, which the policy neither writes nor reads."""
        return config.empty(Geometry(0, 0, 0, 0), batch, torch.zeros(()))

    def prepare(self, control: Observation, state: State) -> Observation:
        return control

    def velocity(self, x_t: Tensor, t: Tensor, prepared: Observation) -> Tensor:
        raise UserError("a policy of lerobot makes its chunks itself, it gives no velocity to a sampler of ours")

    def remember(self, chunk: Chunk, state: State, time: float = 0.0) -> Memory:
        return state.memory

    def normalised(self, actions: Tensor) -> Tensor:
        """The same: chunks are in the robot's units already."""
        return actions

    def in_units(self, x: Tensor) -> Tensor:
        return x

    def make(self, seen: Observation, seed: Tensor, step: Tensor) -> Tensor:
        """The next chunk [B, K, A] in the robot's units. seed, step [B] int64: see `planning.plan`."""
        rows = [self._row(seen, row, int(seed[row]), int(step[row])) for row in range(seen.batch)]
        return torch.stack(rows).to(seen.state.device)

    @torch.no_grad()
    def _row(self, seen: Observation, row: int, seed: int, step: int) -> Tensor:
        batches = [self._batch(moment, row) for moment in _moments(seen)]
        with _seeded(int(noise.row_seed(seed, torch.tensor([step]))), self.device), self._precision():
            made = self._ask(batches)
        chunk = [self.postprocess(made[:, k]) for k in range(made.shape[1])]
        return torch.cat(chunk).float()

    def _batch(self, seen: Observation, row: int) -> dict[str, Any]:
        """The policy's input for one row: as lerobot makes it of an environment's observation, then preprocessed."""
        given: dict[str, Any] = {key: (seen.image[row, at].float() / 255)[None]
                                 for at, key in enumerate(self.cameras.values())}  # fmt: skip
        if self.interface.reads:
            given[STATE] = seen.state[row][None].float()
        text = bytes(int(word) - 1 for word in seen.words[row] if word > 0).decode()
        batch = self.preprocess({**given, TASK: [text]})
        return {key: value for key, value in batch.items() if value is not None and key != ACTION}

    def _ask(self, batches: list[dict[str, Any]]) -> Tensor:
        """The chunk [1, K, A] that follows observations, oldest first. Policies that look back keep their queues full
        through `select_action` alone: it is done for them, as it does."""
        from lerobot.policies.utils import populate_queues

        self.policy.reset()
        queues = getattr(self.policy, "_queues", None) or {}
        batches = [self._stacked(batch, queues) for batch in batches]
        if queues.keys() - {ACTION}:
            for batch in batches:
                populate_queues(queues, batch, exclude_keys=[ACTION])
        made = self.policy.predict_action_chunk(dict(batches[-1]))
        size = self.frame_shape[0]
        if made.ndim != 3 or made.shape[::2] != (1, size):
            raise UserError(f"the policy answered {tuple(made.shape)}, not a chunk (1, K, {size})")
        return made

    def _stacked(self, batch: dict[str, Any], queues: dict[str, Any]) -> dict[str, Any]:
        """With the pictures under the key that the policy's queues have for them."""
        pictures = [batch[key] for key in self.policy.config.image_features if key in batch]
        if pictures and "observation.images" in queues:
            return {**batch, "observation.images": torch.stack(pictures, -4)}
        if pictures and "observation.image" in queues:
            return {**batch, "observation.image": pictures[0]}
        return batch

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type) if self.policy.config.use_amp else contextlib.nullcontext()

    def _blank(self) -> Observation:
        interface = self.interface
        image = torch.zeros(1, len(interface.cameras), 3, *interface.size, dtype=torch.uint8)
        words = torch.tensor([interface.encode("")])
        return Observation(image, torch.zeros(1, len(interface.state.names)), words, 1)


@dataclass(frozen=True, slots=True)
class Asked:
    """The sampler of such a model: one call, by its own code."""

    @property
    def lookahead(self) -> int:
        return 0

    def __call__(self, model: Any, control: Observation, state: State) -> tuple[Tensor, None]:
        """The chunk [B, K, A] for the state's seeds and frames. UserError for a model of another kind."""
        if not isinstance(model, LeRobotModel):
            raise UserError("only a policy of lerobot makes its chunks itself")
        return model.make(control, state.seed, state.frame), None


@dataclass(frozen=True, slots=True)
class LeRobotActing:
    """How lerobot runs the policy: `n_action_steps`, `temporal_ensemble_coeff`."""

    execute: int
    ensemble: float | None = None
    sampler: Asked = field(default_factory=Asked)


@dataclass(frozen=True, slots=True)
class LeRobotPolicy:
    """A policy of lerobot behind what evaluation and serving need. kind: its type, such as act or smolvla."""

    model: LeRobotModel
    acting: LeRobotActing
    kind: str

    @property
    def interface(self) -> Interface:
        return self.model.interface

    @property
    def history(self) -> int:
        return self.model.history

    @property
    def chunkings(self) -> tuple[Chunking, ...]:
        return ("naive",)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @classmethod
    def load(cls, path: Path, device: str = "cpu") -> "LeRobotPolicy":
        """Read a folder that `save_pretrained` or lerobot-train wrote (pretrained_model), and make one chunk.

        Everything about its features, language and statistics that does not fit is one UserError; so is a package that
        the policy needs and that is not installed. Nothing is downloaded for weights that the folder holds.
        """
        check_device(device)
        folder = LeRobotFolder.read(path)
        try:
            policy, preprocess, postprocess = _built(folder, device)
            model = LeRobotModel(policy, preprocess, postprocess, folder.cameras, interface_of(folder))
        except ImportError as error:
            missing = f"the package '{error.name}'" if error.name else "a package"
            raise UserError(f"{path}: the policy '{folder.kind}' needs {missing}, which is missing: {error}") from error
        except BUILDING as error:
            raise UserError(f"{path}: the policy '{folder.kind}' cannot be built or run: {error}") from error
        config, chunk = policy.config, model.chunk
        execute = getattr(config, "n_action_steps", None) or getattr(config, "action_chunk_size", chunk)
        ensemble = getattr(config, "temporal_ensemble_coeff", None)
        return cls(model, LeRobotActing(min(int(execute), chunk), ensemble), folder.kind)


def _built(folder: LeRobotFolder, device: str) -> tuple[Any, Any, Any]:
    """The policy, its preprocessor and its postprocessor."""
    import draccus
    from lerobot.configs import PreTrainedConfig
    from lerobot.policies import PreTrainedPolicy, get_policy_class, make_pre_post_processors
    from lerobot.utils.import_utils import register_third_party_plugins

    register_third_party_plugins()
    known = PreTrainedConfig.get_known_choices()
    if folder.kind not in known:
        raise UserError(
            f"{folder.path / 'config.json'}: no policy type '{folder.kind}': lerobot knows {', '.join(sorted(known))}; "
            "a plug-in for another must be installed, and import without an error"
        )
    try:
        config = PreTrainedConfig.from_pretrained(folder.path, cli_overrides=[f"--device={device}"])
    except draccus.utils.DraccusException as error:
        raise UserError(f"{folder.path / 'config.json'}: {error}") from error
    if config.use_peft:
        raise UserError(f"{folder.path}: holds an adapter (PEFT) only; merge it into its policy first")
    if hasattr(config, "pretrained_backbone_weights"):
        config.pretrained_backbone_weights = None  # pyright: ignore[reportAttributeAccessIssue] the folder has them
    kind: type[PreTrainedPolicy] = get_policy_class(folder.kind)
    on = {"device_processor": {"device": device}} if "device_processor" in folder.steps else {}
    pipelines = make_pre_post_processors(config, str(folder.path), preprocessor_overrides=on)  # before the large part
    policy = kind.from_pretrained(folder.path, config=config, strict=True)
    return policy.eval().requires_grad_(False), *pipelines


def _moments(seen: Observation) -> list[Observation]:
    """The observation and its past, oldest first."""
    found = [seen]
    while found[0].past is not None:
        found.insert(0, found[0].past)
    return found


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's global generators, seeded for a while."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
