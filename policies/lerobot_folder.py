"""What lerobot writes beside a policy's weights, read as data and checked before anything is built.

config.json                 type, sizes, features: keys, kinds and shapes
policy_preprocessor.json    steps from an observation to the policy's input, among them names, statistics, language
policy_postprocessor.json   steps from the policy's output to actions in the robot's units
*.safetensors               weights (model), statistics (a step's state_file)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.errors import UserError
from worldmodel.serial import read_json
from worldmodel.weights import read_tensors

STATE, ACTION, TASK = "observation.state", "action", "task"
PREFIX = "observation.images."
ONE_IMAGE = "observation.image"  # of environments with a single camera
PLACES = ("", "pretrained_model", "checkpoints/last/pretrained_model")
PRE, POST = "policy_preprocessor.json", "policy_postprocessor.json"
MOMENTS = {"MEAN_STD": ("mean", "std"), "MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"),
           "QUANTILE10": ("q10", "q90"), "IDENTITY": ()}  # fmt: skip
EPS = 1e-8  # that lerobot adds to a range: a smaller one would let it explode


def pretrained_in(folder: Path) -> Path | None:
    """Where a folder, or the run of lerobot-train in it, holds a policy of lerobot; None if it holds none."""
    for place in PLACES:
        path = folder / place / "config.json"
        if path.is_file():
            config = read_json(path)
            if isinstance(config, dict) and "type" in config and "kind" not in config:
                return folder / place
    return None


@dataclass(frozen=True, slots=True)
class Feature:
    """kind: VISUAL, STATE, ACTION or another of lerobot's. shape: of one, without batch and time."""

    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeRobotFolder:
    """A folder whose files are all there and agree. renamed: keys of an observation -> keys of the policy."""

    path: Path
    config: dict[str, Any]
    inputs: dict[str, Feature]
    actions: int
    renamed: dict[str, str]
    steps: tuple[str, ...]  # names of the preprocessor's

    @classmethod
    def read(cls, path: Path) -> "LeRobotFolder":
        """UserError for what is missing or broken; what does not fit is one UserError that lists all of it."""
        config = _object(path / "config.json")
        pre, post = _steps(path / PRE), _steps(path / POST)
        if not (path / "model.safetensors").is_file():
            read_tensors(path / "model.safetensors")
        inputs, outputs = (_features(config.get(f"{side}_features"), path, side) for side in ("input", "output"))
        renamed = {key: name for step in pre if _name(step) == "rename_observations_processor"
                   for key, name in step["config"].get("rename_map", {}).items()}  # fmt: skip
        wrong = list(_wrong_features(inputs, outputs)) + list(_wrong_language(pre))
        wrong += _wrong_statistics(path, pre, "normalizer", inputs, config)
        wrong += _wrong_statistics(path, post, "unnormalizer", outputs, config)
        if wrong:
            count = f"{len(wrong)} problem{'s' * (len(wrong) > 1)}"
            raise UserError(f"{path}: {count} with this policy of lerobot: {'; '.join(wrong)}")
        return cls(path, config, inputs, outputs[ACTION].shape[0], renamed, tuple(map(_name, pre)))

    @property
    def kind(self) -> str:
        return str(self.config["type"])

    @property
    def cameras(self) -> dict[str, str]:
        """Names of the cameras that a robot must have, with the key under which each is given."""
        keys = {self.given(key): key for key, feature in self.inputs.items() if feature.kind == "VISUAL"}
        return {key.removeprefix(PREFIX).removeprefix("observation."): key for key, own in keys.items()
                if "empty_camera" not in own}  # fmt: skip

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of all pictures; (64, 64) of a policy that sees none."""
        shapes = [feature.shape for key, feature in self.inputs.items() if _seen(key, feature)]
        return (shapes[0][1], shapes[0][2]) if shapes else (64, 64)

    @property
    def states(self) -> int:
        """Dimensions of the state that the policy reads; 0 for none."""
        return self.inputs[STATE].shape[0] if STATE in self.inputs else 0

    def given(self, key: str) -> str:
        """The key under which the preprocessor takes what the policy calls `key`."""
        return next((name for name, own in self.renamed.items() if own == key), key)


def _object(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError(f"{path}: holds no object")
    return found


def _steps(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise UserError(
            f"{path}: no such file; it is saved with a policy since lerobot 0.4, whose migrate_policy_normalization "
            "makes it from the statistics of older ones"
        )
    steps = _object(path).get("steps")
    if not isinstance(steps, list) or not all(isinstance(s, dict) and isinstance(s.get("config"), dict) for s in steps):
        raise UserError(f"{path}: 'steps' must be a list of objects with a 'config'")
    return steps


def _name(step: dict[str, Any]) -> str:
    return str(step.get("registry_name") or step.get("class", "")).rpartition(".")[2]


def _features(found: Any, path: Path, side: str) -> dict[str, Feature]:
    try:
        return {key: Feature(str(f["type"]), tuple(int(size) for size in f["shape"])) for key, f in found.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path / 'config.json'}: {side}_features must give each key a type and a shape") from error


def _seen(key: str, feature: Feature) -> bool:
    return feature.kind == "VISUAL" and "empty_camera" not in key


def _wrong_features(inputs: dict[str, Feature], outputs: dict[str, Feature]) -> Iterator[str]:
    pictures = {key: feature for key, feature in inputs.items() if _seen(key, feature)}
    for key, feature in pictures.items():
        if not key.startswith(PREFIX) and key != ONE_IMAGE:
            yield f"{key}: pictures are called {PREFIX}NAME or {ONE_IMAGE}"
        if len(feature.shape) != 3 or feature.shape[0] != 3:
            yield f"{key}: a picture is (3, height, width), not {feature.shape}"
    if len({feature.shape for feature in pictures.values()}) > 1:
        yield "pictures of different sizes: " + ", ".join(f"{key} {each.shape}" for key, each in pictures.items())
    for key, feature in inputs.items():
        if feature.kind != "VISUAL" and key != STATE:
            yield f"{key}: the policy needs it, and only pictures, {STATE} and {TASK} are given"
    for key, feature in [*inputs.items(), *outputs.items()]:
        if key in (STATE, ACTION) and len(feature.shape) != 1:
            yield f"{key}: must have one axis, not the shape {feature.shape}"
    if ACTION not in outputs:
        yield f"{ACTION}: missing among the output features"
    yield from (f"{key}: an output that is no {ACTION}" for key in outputs if key != ACTION)


def _wrong_language(pre: list[dict[str, Any]]) -> Iterator[str]:
    for step in pre:
        if (key := step["config"].get("task_key", TASK)) != TASK:
            yield f"{key}: {_name(step)} takes the instruction from this key, it is given as {TASK}"


def _wrong_statistics(
    path: Path, steps: list[dict[str, Any]], wanted: str, features: dict[str, Feature], config: dict[str, Any]
) -> list[str]:
    """Of the step of the kind `wanted`: statistics that are missing, of another size, not finite, or without range."""
    modes = config.get("normalization_mapping") or {}
    normalised = {key: feature for key, feature in features.items()
                  if modes.get(feature.kind, "IDENTITY") != "IDENTITY" and "empty_camera" not in key}  # fmt: skip
    step = next((step for step in steps if wanted in _name(step).split("_")), None)
    if step is None:
        return [f"{key}: is to be normalised, but there is no {wanted}" for key in normalised]
    file = step.get("state_file")
    stats = read_tensors(path / file) if isinstance(file, str) else {}
    found = []
    for key, feature in normalised.items():
        mode = step["config"].get("norm_map", {}).get(feature.kind, "IDENTITY")
        if mode not in MOMENTS:
            found.append(f"{key}: no normalisation '{mode}'; there are {', '.join(MOMENTS)}")
            continue
        size = feature.shape[0] if feature.shape else 0
        values = {moment: stats[f"{key}.{moment}"].double().numpy().reshape(-1)
                  for moment in MOMENTS[mode] if f"{key}.{moment}" in stats}  # fmt: skip
        found += [f"{key}: statistic '{moment}' is missing" for moment in MOMENTS[mode] if moment not in values]
        for moment, value in values.items():
            if len(value) != size:
                found.append(f"{key}: statistic '{moment}' has {len(value)} values for {size} dimensions")
            found += [f"{key}[{i}]: statistic '{moment}' is {x}" for i, x in enumerate(value) if not np.isfinite(x)]
        if key != ACTION and len(values) == 2 and all(len(v) == size for v in values.values()):
            first, second = values.values()
            widths = second if mode == "MEAN_STD" else second - first
            found += [f"{key}[{i}]: has no range to normalise" for i, x in enumerate(widths) if abs(x) <= EPS]
    return found
