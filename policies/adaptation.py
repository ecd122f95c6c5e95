"""Training of a context encoder (Self-Adaptive VLA, 2609.30092): from trials on shifted robots to a token that corrects
the frozen policy that made them.

A sample pairs a trial that the policy made, knowing nothing, under some shift with a demonstration of the robot as
built, rewritten for the same shift (`Shift.compensate`): what to do, and what proprioception would read, if this robot
were to make the demonstrated motion. The loss is the policy's own, and reaches the encoder alone.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from worldmodel.chunk import Clip
from worldmodel.errors import UserError
from worldmodel.fingerprint import fingerprint
from worldmodel.folders import replaced
from worldmodel.models.world import made_in
from worldmodel.objectives.base import Objective
from worldmodel.policies.behaviour_cloning import BehaviourCloning
from worldmodel.policies.context_encoder import Context, ContextConfig, ContextEncoder, context_of
from worldmodel.policies.demonstrations import Demonstrations, Episode
from worldmodel.policies.episodes import Trial
from worldmodel.policies.flow_policy import FlowPolicy
from worldmodel.policies.observation import Observation
from worldmodel.policies.policy import Policy
from worldmodel.policies.shifts import OFFSETS, ActuationBias, EncoderOffset, Shift, draw_offset, parse_shift
from worldmodel.policies.trials import Trials
from worldmodel.run import Recipe, Training
from worldmodel.serial import check_config, from_json, read_json, to_json, write_json
from worldmodel.weights import build_with, load_into, read_tensors, write_tensors

FORMAT = 1
FILES = ("config.json", "encoder.safetensors")
KIND = "context encoder"


@dataclass(frozen=True, slots=True)
class ShiftedObservation:
    """An observation of a robot, and a trial that it made before."""

    now: Observation
    trial: Context

    @property
    def batch(self) -> int:
        return self.now.batch

    @property
    def length(self) -> int:
        return self.now.length

    def to(self, device: torch.device | str) -> "ShiftedObservation":
        trial = Context(self.trial.seen.to(device), self.trial.motion.to(device), self.trial.valid.to(device))
        return ShiftedObservation(self.now.to(device), trial)

    def select(self, rows: Tensor) -> "ShiftedObservation":
        return ShiftedObservation(self.now.select(rows), self.trial.select(rows))

    def frames(self, start: int, stop: int) -> "ShiftedObservation":
        return replace(self, now=self.now.frames(start, stop))

    def drop(self, rows: Tensor) -> "ShiftedObservation":
        return replace(self, now=self.now.drop(rows))


class Adapted(nn.Module):
    """A frozen policy and the encoder that corrects it: trained as one model, of which only the encoder learns."""

    def __init__(self, policy: FlowPolicy, encoder: ContextEncoder) -> None:
        super().__init__()
        self.policy, self.encoder = policy.eval().requires_grad_(False), encoder

    def forward(self, mode: Literal["chunk"], x_t: Tensor, t: Tensor, seen: ShiftedObservation) -> Tensor:
        """The velocity [B, K, A] under the observation, corrected by what the trial shows."""
        context = self.encoder.injected(self.encoder(seen.trial))
        return self.policy(mode, x_t, t, replace(seen.now, context=context))


@dataclass(frozen=True, slots=True)
class Adaptation:
    """A context encoder and the policy that it belongs to, which `policy` names by its fingerprint."""

    encoder: ContextEncoder
    policy: str
    card: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the folder; an older encoder in it is replaced as a whole, other files stay."""
        with replaced(folder, FILES) as beside:
            write_tensors(self.encoder.state_dict(), beside / FILES[1])
            config = {"format": FORMAT, "kind": KIND, "encoder": to_json(self.encoder.cfg), "policy": self.policy}
            write_json({**config, "card": self.card}, beside / FILES[0])

    @classmethod
    def find(cls, folder: Path, policy: Policy) -> "Adaptation":
        """Load an encoder for this policy, or what the run in a folder has made so far. Anything missing, broken, or
        made for another policy is a UserError."""
        path = made_in(folder) / FILES[0]
        config = check_config(read_json(path), KIND, FORMAT, path, keys=("encoder", "policy"))
        if config["policy"] != fingerprint(policy.model):
            raise UserError(f"{path}: this context encoder was trained for another policy")
        cfg: ContextConfig = from_json(config["encoder"], ContextConfig, f"{path}: encoder")
        weights = path.with_name(FILES[1])
        encoder = build_with(lambda: cfg.build(policy.model), read_tensors(weights), str(weights))
        encoder = encoder.to(policy.device).eval().requires_grad_(False)
        return cls(encoder, config["policy"], config.get("card", {}))

    @torch.no_grad()
    def token(self, policy: Policy, trial: Trial) -> Tensor:
        """What a trial shows of the robot that made it, [W]."""
        return self.encoder(contexts(policy.model, [trial]))[0]

    @torch.no_grad()
    def context(self, token: Tensor) -> Tensor:
        """A token [W], of one trial or an ensemble, as `Observation.context` takes it, [D]."""
        return self.encoder.injected(token)


def contexts(model: FlowPolicy, trials: list[Trial]) -> Context:
    """The trials as the encoder reads them, filled up to the longest."""
    device = model.action_in.weight.device
    moments = max(len(trial.state) for trial in trials)

    def filled(name: str) -> Tensor:
        parts = [getattr(trial, name) for trial in trials]
        widths = [[(0, moments - len(part))] + [(0, 0)] * (part.ndim - 1) for part in parts]
        return torch.from_numpy(np.stack([np.pad(part, width) for part, width in zip(parts, widths, strict=True)]))

    valid = torch.arange(moments) < torch.tensor([len(trial.state) for trial in trials])[:, None]
    image, state, action = (filled(name).to(device) for name in ("image", "state", "action"))
    return context_of(model, image, state, action, valid.to(device))


@dataclass(frozen=True, kw_only=True)
class AdaptationRun(Training, Recipe):
    """policy: folder of the frozen policy. trials: folders of its trials on shifted robots (`record_trials`).
    demonstrations: of the robot as built. hold_out: every so many-th trial of each kind of shift validates. rewritten:
    share of the samples whose trial is rewritten for a random offset of up to `most` metres in place of its own (an
    offset of its own kind: the same motion, but other targets and readings), so that a few hundred trials show
    thousands of robots; our own addition. For all else see `Training`."""

    policy: Path
    trials: tuple[Path, ...]
    demonstrations: Demonstrations
    model: ContextConfig = field(default_factory=ContextConfig)
    objective: BehaviourCloning = field(default_factory=BehaviourCloning)
    hold_out: int = 10
    rewritten: float = 0.0
    most: float = 0.06

    def __post_init__(self) -> None:
        if not 0 <= self.rewritten <= 1:
            raise UserError(f"adaptation: rewritten must be in [0, 1], not {self.rewritten}")
        draw_offset(OFFSETS[0], 0, self.most, 0)

    @property
    def batches(self) -> "ShiftedChunks":
        rewriting = Rewriting(self.rewritten, self.most)
        return _chunks(self.policy, self.trials, self.demonstrations, self.hold_out, rewriting)

    def build(self) -> Adapted:
        if self.objective.ending:
            raise UserError("adaptation: objective.ending must be 0: a frozen policy's eyes learn nothing")
        policy = Policy.find(self.policy)
        return Adapted(policy.model, self.model.build(policy.model))

    def build_objective(self, model: nn.Module, add: Callable[[str, nn.Module], nn.Module]) -> Objective:
        return self.objective.build(model, Policy.find(self.policy).model.chunk, self.seed)

    def template(self) -> "AdaptationTemplate":
        return AdaptationTemplate(self, self.build())

    @property
    def next_command(self) -> str:
        return f"evaluate recovery {self.policy} --encoder {self.out} --task TASK"

    def identity(self, frozen: str | None) -> dict[str, Any]:
        return {
            "model": self.model,
            "objective": self.objective,
            "hold_out": self.hold_out,
            "rewritten": self.rewritten,
            "most": self.most,
            "data.batch": self.demonstrations.batch,
            "data.seed": self.demonstrations.seed,
            "data.split": self.demonstrations.read().split,
            "trials": [len(Trials.load(folder).known) for folder in self.trials],
            "frozen": frozen,
        }


@dataclass(frozen=True, slots=True)
class AdaptationTemplate:
    """The context encoder of a run, filled with weights at every save."""

    run: AdaptationRun
    model: Adapted

    def fill(self, weights: dict[str, Tensor], card: dict[str, Any]) -> Adaptation:
        own = {name.removeprefix("encoder."): tensor for name, tensor in weights.items()}
        load_into(self.model.encoder, own, str(self.run.out))
        return Adaptation(self.model.encoder.eval(), fingerprint(self.model.policy), card)

    def look(self, made: Adaptation, video: Path) -> None:
        """Nothing: a token is no picture."""


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Which trials are rewritten for another robot. share: of the samples. most: length of its offset in metres."""

    share: float
    most: float

    def other(self, shift: Shift, number: int) -> Shift:
        """The shift that a trial under `shift` is rewritten for; itself, where it is left alone or is no offset.

        number: random, of 62 bits.
        """
        if not isinstance(shift, ActuationBias | EncoderOffset) or number % 2**20 >= self.share * 2**20:
            return shift
        return draw_offset(shift.kind, 0, self.most, number >> 20)


@dataclass(frozen=True, slots=True)
class ShiftedChunks:
    """Clips of normalised actions [B, K, A] under shifted observations, a pure function of the step."""

    cfg: Demonstrations
    model: FlowPolicy
    training: tuple[Episode, ...]
    held_out: tuple[Episode, ...]
    trials: Context
    shifts: list[Shift]
    hold_out: int
    rewriting: Rewriting

    @property
    def parts(self) -> tuple[list[int], list[int]]:
        """The trials that are trained on, and those that validate."""
        kinds: dict[type[Shift], list[int]] = {}
        for i, shift in enumerate(self.shifts):
            kinds.setdefault(type(shift), []).append(i)
        held_out = {i for own in kinds.values() for i in own[:: self.hold_out]}
        return [i for i in range(len(self.shifts)) if i not in held_out], sorted(held_out)

    def batches(self, first_step: int, rank: int, world: int, micro: int) -> Iterator[list[Clip[ShiftedObservation]]]:
        """From `first_step` on, this rank's share of every step's clips, cut into `micro` micro-batches."""
        if self.cfg.batch % (world * micro):
            raise UserError(f"demonstrations: batch {self.cfg.batch} does not divide among {world} x {micro} parts")
        trials, _ = self.parts
        step, share = first_step, self.cfg.batch // world
        while True:
            rng = np.random.default_rng([self.cfg.seed, 2, step])
            own = slice(rank * share, (rank + 1) * share)
            drawn, others = (
                rng.integers(0, 2**62, (self.cfg.batch, 2))[own],
                rng.integers(0, 2**62, self.cfg.batch)[own],
            )
            clip = self._clip(self.training, trials, drawn, step * self.cfg.batch + own.start, others)
            size = share // micro
            yield [clip.select(torch.arange(m * size, (m + 1) * size)) for m in range(micro)]
            step += 1

    def validation_batches(self, count: int) -> Iterator[Clip[ShiftedObservation]]:
        """`count` fixed batches of trials and episodes that nothing was trained on."""
        _, trials = self.parts
        for number in range(count):
            drawn = np.random.default_rng([self.cfg.seed, 3, number]).integers(0, 2**62, (self.cfg.batch, 2))
            yield self._clip(self.held_out or self.training, trials, drawn, number * self.cfg.batch)

    def _clip(
        self,
        episodes: tuple[Episode, ...],
        trials: list[int],
        drawn: NDArray[np.int64],
        first: int,
        others: NDArray[np.int64] | None = None,
    ) -> Clip[ShiftedObservation]:
        """others: for each row, a number that says for which robot its trial is rewritten; None: for none."""
        ends = np.cumsum([len(episode) for episode in episodes])
        rows, which = drawn[:, 0] % ends[-1], np.array(trials)[drawn[:, 1] % len(trials)]
        where = np.searchsorted(ends, rows, side="right")
        made = [self.shifts[trial] for trial in which]
        now = made if others is None else [self.rewriting.other(s, int(n)) for s, n in zip(made, others, strict=True)]
        images, states, actions, words = [], [], [], []
        for episode, row, shift in zip(where, rows, now, strict=True):
            e = episodes[episode]
            t = int(row - (ends[episode] - len(e)))
            later = np.minimum(t + shift.delay + np.arange(self.model.chunk), len(e) - 1)
            images.append(e.image[t])
            states.append(shift.report(e.state[t]))
            actions.append(shift.command(e.action[later]))
            words.append(self.model.interface.encode(e.task))
        observation = Observation(
            image=torch.from_numpy(np.stack(images)),
            state=torch.from_numpy(np.stack(states)),
            words=torch.tensor(words),
            length=self.model.chunk,
        )
        x = self.model.normalised(torch.from_numpy(np.stack(actions)))
        context = self.trials.select(torch.from_numpy(which))
        moved = [self._moved(before, after) for before, after in zip(made, now, strict=True)]
        motion = context.motion + torch.from_numpy(np.stack(moved))[:, None]
        seen = ShiftedObservation(observation, replace(context, motion=motion))
        return Clip(x, seen, torch.arange(first, first + len(rows)))

    def _moved(self, made: Shift, now: Shift) -> NDArray[np.float32]:
        """What is added to normalised states and actions [S + A] of a trial that an offset `made`, for the same motion
        under the offset `now`."""
        ranges = self.model.interface
        state, action = (np.zeros(len(of.names)) for of in (ranges.state, ranges.action))
        if made is not now:
            state, action = now.report(state) - made.report(state), now.command(action) - made.command(action)
        parts = ((state, ranges.state), (action, ranges.action))
        return np.concatenate([part / of.half.numpy() for part, of in parts]).astype(np.float32)


@functools.lru_cache(maxsize=1)
def _chunks(
    policy_folder: Path,
    folders: tuple[Path, ...],
    demonstrations: Demonstrations,
    hold_out: int,
    rewriting: Rewriting,
) -> ShiftedChunks:
    policy, trials = Policy.find(policy_folder), [Trials.load(folder) for folder in folders]
    own = fingerprint(policy.model)
    read = demonstrations.read()
    wrong = policy.interface.differences(read.interface)
    wrong += [
        f"{folder}: the trials of another policy"
        for folder, each in zip(folders, trials, strict=True)
        if each.policy != own
    ]
    wrong += [
        f"{folder}: {each}"
        for folder, found in zip(folders, trials, strict=True)
        for each in found.differences(policy.interface)
    ]
    wrong += ["demonstrations.shift must be nominal: each sample brings its own"] * (
        parse_shift(demonstrations.shift).name != "nominal"
    )
    wrong += ["demonstrations.offset must be 0: each sample brings its own"] * (demonstrations.offset > 0)
    wrong += ["demonstrations.early must be 0: trials are paired with frames of all moments"] * (
        demonstrations.early > 0
    )
    wrong += ["hold_out must be at least 2"] * (hold_out < 2)
    if wrong:
        raise UserError(f"adaptation of {policy_folder}: {'; '.join(wrong)}")
    shifts = [parse_shift(known.shift) for each in trials for known in each.known]
    if len(shifts) == len({type(shift) for shift in shifts}):
        raise UserError(f"adaptation of {policy_folder}: one trial of each kind of shift validates, and none is left")
    made = contexts(policy.model, [trial for each in trials for trial in each.made])
    return ShiftedChunks(demonstrations, policy.model, read.training, read.held_out, made, shifts, hold_out, rewriting)
