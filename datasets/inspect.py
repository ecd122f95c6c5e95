"""`inspect`: what is this, what is wrong with it, and what to do next."""

import json as json_format
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel import checkpoint
from worldmodel.datasets.clips import MANY, VideoFolder, video_paths
from worldmodel.datasets.latent_files import INFO, PLAN, Latents, LatentsInfo
from worldmodel.datasets.lerobot import LeRobotRecordings, is_lerobot
from worldmodel.datasets.merge_actions import CHOICES
from worldmodel.datasets.recordings import Recordings, located
from worldmodel.datasets.video import open_video
from worldmodel.errors import UserError
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.tokenizer_folder import load_tokenizer
from worldmodel.models.world import WorldModel
from worldmodel.progress import progress_bar
from worldmodel.run import load
from worldmodel.serial import read_json
from worldmodel.weights import PICKLES, read_tensors

MAX_SHOWN = 20  # problems of one kind
SMALL = 32  # pixels; so far a world is trained on pixels, without an autoencoder
LARGE = 128  # pixels; so far an autoencoder of your own is quickly trained, beyond it take a pretrained one
AUTOENCODER = "configs/doom_autoencoder.py"
FACTOR = 2 ** len(AutoencoderConfig().widths)  # pixels per latent cell of that autoencoder


@dataclass(slots=True)
class Report:
    """What was found at a path. `next` is the command that most people want now."""

    path: str
    kind: str
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    next: str = ""


def inspect(path: Path, deep: bool = False, json: Path | None = None) -> int:
    """Say what a file or folder is, what is wrong with it, and which command comes next.

    Example: worldmodel inspect data/drive

    Knows LeRobotDatasets, folders of videos, single videos, folders of latents, world models, runs with their
    checkpoints, tokenizers and the names "owner/name" of LeRobotDatasets on the hub, which it fetches. --deep decodes
    every frame. The exit code is 2 if there are problems.
    """
    report = examine(path, deep)
    print(f"{report.path}: {report.kind}")
    for name, value in report.facts.items():
        if isinstance(value, dict):
            print(f"  {name}:")
            for key, item in list(value.items())[:MAX_SHOWN]:
                print(f"    {key}: {_show(item)}")
            if len(value) > MAX_SHOWN:
                print(f"    ... and {len(value) - MAX_SHOWN} more")
        else:
            print(f"  {name}: {_show(value)}")
    for title, lines in (("note", report.notes), ("problem", report.problems)):
        for line in lines[:MAX_SHOWN]:
            print(f"  {title}: {line}")
        if len(lines) > MAX_SHOWN:
            print(f"  ... and {len(lines) - MAX_SHOWN} more {title}s")
    if report.next:
        print(f"next: {report.next}")
    if json is not None:
        json.write_text(json_format.dumps({"command": "inspect", **asdict(report)}, indent=1) + "\n")
    return 2 if report.problems else 0


def examine(path: Path, deep: bool = False) -> Report:
    """The report. A path that is none of the kinds is a UserError; problems inside are listed in the report.

    A name "owner/name" that is no path is a LeRobotDataset on the hub, which is fetched.
    """
    if not path.exists():
        return _lerobot(located(path), deep, str(path))
    if path.is_file():
        return _file(path, deep)
    if is_lerobot(path):
        return _lerobot(path, deep, str(path))
    if (path / INFO).is_file() or (path / PLAN).is_file():
        return _latents(path)
    if (path / "state.json").is_file():
        return _checkpoint(path)
    if checkpoint.steps(path):
        return _run(path)
    if (path / "config.json").is_file():
        return _model(path)
    if (path / "model_index.json").is_file():
        return _pipeline(path)
    return _videos(path, deep)


def _file(path: Path, deep: bool) -> Report:
    if path.suffix == ".safetensors":
        report = Report(str(path), "weights (safetensors)")
        try:
            tensors = read_tensors(path)
        except UserError as error:
            report.problems.append(str(error))
            return report
        report.facts = {"tensors": len(tensors), "numbers": sum(tensor.numel() for tensor in tensors.values())}
        report.next = f"worldmodel inspect {path.parent}"
        return report
    if path.suffix in PICKLES:
        raise UserError(f"{path}: a pickle could run code when it is read; only safetensors files are loaded")
    return _videos(path, deep)


def _videos(path: Path, deep: bool) -> Report:
    paths = video_paths(path)
    report = Report(str(path), "video" if path.is_file() else "folder of videos")
    sound = []
    with progress_bar("look", len(paths), unit="files", shown=len(paths) >= MANY) as advance:
        for file in paths:
            try:
                sound.append(open_video(file))
            except UserError as error:
                report.problems.append(str(error))
            advance(1)
    report.facts = {"files": len(paths), "reader": {str(v.path): f"{v.reader} {v.reason}".strip() for v in sound}}
    if not sound:
        return report
    rate, uneven = sound[0].fps, [video for video in sound if video.uneven is not None or video.fps != sound[0].fps]
    target, merged = max(1, round(rate)), False
    sizes = sorted({(video.width, video.height) for video in sound})
    if uneven:
        report.notes.append(
            f"{len(uneven)} of {len(sound)} files have another or a variable rate, the first is {uneven[0].path}: "
            f"--fps {target} brings all to one"
        )
    if len(sizes) > 1:
        report.notes.append(f"{len(sizes)} different sizes of pictures: --size brings all to one")
    report.facts["sizes"] = [f"{width}x{height}" for width, height in sizes]
    if not report.problems:
        try:
            resampled = VideoFolder.of(path, tuple(sound), Fraction(target), "last")
            merged = resampled.merge is not None
            _recordings(report, resampled if uneven else VideoFolder.of(path, tuple(sound)), deep)
        except UserError as error:
            report.problems.append(str(error))
    options = f" --fps {target}" if uneven or rate.denominator != 1 else ""
    if merged:
        options += " --merge-actions MERGE"
        shown = "; the actions here are shown as with last" if uneven else ""
        report.notes.append(f"--fps {target} leaves out or repeats frames: MERGE is {CHOICES}{shown}")
    report.next = f"worldmodel convert {path} data/{path.stem} --size 64{options}"
    return report


def _lerobot(path: Path, deep: bool, name: str) -> Report:
    report = Report(name, "LeRobotDataset")
    try:
        recordings = LeRobotRecordings.open(path)
        report.kind = recordings.kind
        _recordings(report, recordings, deep)
    except UserError as error:
        report.problems.append(str(error))
        return report
    camera = f" --camera {next(iter(recordings.cameras))}" if len(recordings.cameras) > 1 else ""
    out = name if name == str(path) else f"data/{Path(name).name}"
    tokenizer, kind = "pixels", "latents"
    height, width = next(iter(recordings.cameras.values()), (0, 0))
    if SMALL < max(height, width) <= LARGE:
        kind = "pixels"
        report.notes.append(
            f"with --tokenizer pixels you train a tokenizer of your own first ({AUTOENCODER}); a pretrained diffusers "
            "autoencoder, by folder or name on the hub (such as madebyollin/taesd), makes latents at once"
        )
        if height % FACTOR or width % FACTOR:
            camera += f" --size {width // FACTOR * FACTOR}x{height // FACTOR * FACTOR}"
    elif max(height, width) > LARGE:
        tokenizer = "TOKENIZER"
        report.notes.append(
            "TOKENIZER is the folder or the name on the hub of a pretrained diffusers autoencoder (such as "
            "madebyollin/taesd); or make the pictures small (--size 64 --tokenizer pixels) and train your own with "
            f"{AUTOENCODER}"
        )
    report.next = f"worldmodel encode {name}{camera} --tokenizer {tokenizer} --out {out}_{kind}"
    return report


def _recordings(report: Report, recordings: Recordings, deep: bool) -> None:
    """Facts and problems of any recording. Actions are all read; of the pictures, one episode unless `deep`."""
    lengths = recordings.episodes
    frames = sum(lengths.values())
    report.facts |= {
        "episodes": len(lengths),
        "frames": frames,
        "frames per episode": _range(list(lengths.values())),
        "duration": f"{frames / float(recordings.fps) / 60:.1f} minutes",
        "fps": str(recordings.fps),
        "cameras": {name: f"{width}x{height}" for name, (height, width) in recordings.cameras.items()},
    }
    report.notes += recordings.notes()
    try:
        recordings.check_statistics(recordings.action_names)
    except UserError as error:
        report.problems.append(str(error))
    collected = []
    with progress_bar("read", frames) as advance:
        for index in lengths:
            try:
                collected.append(recordings.actions(index))
                for camera in recordings.cameras if deep or index == next(iter(lengths)) else ():
                    for _ in recordings.frames(index, camera):
                        pass
            except UserError as error:
                report.problems.append(str(error))
            advance(lengths[index])
    if recordings.action_names and collected:
        report.facts["actions"] = _action_ranges(recordings.action_names, np.concatenate(collected))


def _latents(path: Path) -> Report:
    finished = (path / INFO).is_file()
    report = Report(str(path), "latents" if finished else "unfinished latents")
    try:
        info = LatentsInfo.read(path, INFO if finished else PLAN)
    except UserError as error:
        report.problems.append(str(error))
        return report
    report.facts = {
        "episodes": len(info.episodes),
        "latent frames": info.frames,
        "frame": list(info.shape),
        "pixels": f"{info.shape[2] * info.spatial}x{info.shape[1] * info.spatial}",
        "pixel frames per latent frame": info.temporal,
        "fps": str(info.fps),
        "tokenizer": f"{info.tokenizer} {info.sha256[:12]}",
        "source": f"{info.source} ({info.camera})",
    }
    command = f"worldmodel encode {info.source} --camera {info.camera} --tokenizer {path / 'tokenizer'} --out {path}"
    rate = "" if info.merge_actions is None else f" --fps {info.fps} --merge-actions {info.merge_actions}"
    latents, collected = Latents(path, info), []
    for index, length in info.episodes.items():
        try:
            latents.frames(index, length - 1, length)
            rows = (length - 1) * info.temporal
            collected.append(latents.actions(index)[1:].reshape(rows, len(info.action_names)))
        except UserError as error:
            if finished:
                report.problems.append(str(error))
    if not finished:
        report.problems.append(f"{len(collected)} of {len(info.episodes)} episodes are encoded")
    if info.action_names and collected:
        report.facts["actions"] = _action_ranges(info.action_names, np.concatenate(collected))
    if report.problems:
        report.next = command + rate
        return report
    own = path.name.removesuffix("_pixels").removesuffix("_latents")
    world = f"worldmodel train {_configuration(info)} --data.path {path} --out runs/{own}"
    report.next = world
    if _wants_autoencoder(info):
        report.next = f"worldmodel train {AUTOENCODER} --data.path {path} --out runs/{own}_tokenizer"
        _, height, width = info.shape
        report.notes.append(
            f"after that: worldmodel encode {info.source} --camera {info.camera} --size {width}x{height} "
            f"--tokenizer runs/{own}_tokenizer/model --out {path.parent / own}_latents{rate}"
        )
        report.notes.append(f"a world of the pixels themselves is slow to train: {world}")
    return report


def _wants_autoencoder(info: LatentsInfo) -> bool:
    """Pixels of pictures that are better encoded first, and that our autoencoder takes."""
    plain = info.shape[0] == 3 and info.spatial == info.temporal == 1
    return plain and max(info.shape[1:]) > SMALL and not any(side % FACTOR for side in info.shape[1:])


def _configuration(info: LatentsInfo) -> str:
    """The nearest file in configs/, and the options that make its model fit the latents."""
    name = "configs/maze.py" if info.shape[0] == 3 else "configs/doom.py"
    file = Path(__file__).parent.parent / name
    model: Any = load(file).model if file.is_file() else None  # a wheel has no configs: then every option is given
    channels, *size = info.shape
    wanted: dict[str, Any] = {"channels": channels, "size": tuple(size)}
    patch = getattr(model, "patch", 1)
    if any(side % patch for side in size):
        wanted["patch"] = max(p for p in range(1, patch) if not any(side % p for side in size))
    wanted["actions"] = len(info.action_names) * info.temporal
    options = [name]
    for key, value in wanted.items():
        if getattr(model, key, None) != value:
            options.append(f"--model.{key} {' '.join(map(str, value if isinstance(value, tuple) else (value,)))}")
    return " ".join(options)


def _model(path: Path) -> Report:
    config = read_json(path / "config.json")
    report = Report(str(path), "folder with a config.json")
    if isinstance(config, dict) and config.get("kind") == "world model":
        report.kind = "world model"
        for problem in _loaded(report, path):
            report.problems.append(problem)
        report.next = f"worldmodel serve {path}"
        return report
    if isinstance(config, dict) and config.get("_class_name", "").endswith("Transformer3DModel"):
        report.kind = f"weights of diffusers' {config['_class_name']}"
        report.facts = {key: value for key, value in config.items() if not key.startswith("_")}
        return report
    tokenizer = load_tokenizer(path)
    report.kind = f"tokenizer ({type(tokenizer).__name__})"
    report.facts = {
        "channels": tokenizer.channels,
        "pixels per latent cell": f"{tokenizer.spatial}x{tokenizer.spatial}",
        "pixel frames per latent frame": tokenizer.temporal,
    }
    report.next = f"worldmodel encode DATA --tokenizer {path} --out DATA_latents"
    return report


def _pipeline(path: Path) -> Report:
    index = read_json(path / "model_index.json")
    report = Report(str(path), f"diffusers pipeline {index.get('_class_name')}")
    report.facts = {"parts": [name for name in index if not name.startswith("_") and (path / name).is_dir()]}
    vae = path / "vae"
    report.next = f"worldmodel encode DATA --tokenizer {vae} --out DATA_latents" if vae.is_dir() else ""
    return report


def _loaded(report: Report, path: Path) -> Iterator[str]:
    """Facts of a world model; yields what keeps it from being loaded."""
    try:
        world = WorldModel.load(path)
    except UserError as error:
        yield str(error)
        return
    height, width = (size * world.tokenizer.spatial for size in world.dit.cfg.size)
    report.facts = {
        "parameters": sum(parameter.numel() for parameter in world.dit.parameters()),
        "pixels": f"{width}x{height}",
        "fps": world.fps,
        "frames per chunk": world.pixel_frames,
        "memory": str(world.stream.memory),
        "sampler": str(world.stream.sampler),
        "beginnings": 0 if world.starts is None else world.starts.x.shape[0],
    }
    if world.actions is not None:
        bounds = zip(world.actions.names, world.actions.low, world.actions.high, strict=True)
        report.facts["actions"] = {name: [low, high] for name, low, high in bounds}
    report.facts |= {key: value for key, value in world.card.items() if isinstance(value, str | int | float)}


def _run(path: Path) -> Report:
    steps = checkpoint.steps(path)
    report = Report(str(path), "run", {"checkpoints": [step.name for step in steps]})
    report.problems = _checkpoint(steps[-1]).problems
    model = path / "model"
    if model.is_dir():
        report.facts["model"] = str(model)
        config = read_json(model / "config.json")
        world = isinstance(config, dict) and config.get("kind") == "world model"
        report.next = (
            f"worldmodel serve {path}" if world else f"worldmodel encode DATA --tokenizer {model} --out DATA_latents"
        )
    return report


def _checkpoint(path: Path) -> Report:
    report = Report(str(path), "checkpoint of a run")
    try:
        state = checkpoint.read_state(path)
        report.facts = {"step": state.get("step")}
        for file in sorted(path.glob("*.safetensors")):
            report.facts[file.name] = f"{len(read_tensors(file))} tensors"
    except UserError as error:
        report.problems.append(str(error))
    report.next = "the `worldmodel train` command that made it goes on from it"
    return report


def _action_ranges(names: tuple[str, ...], values: np.ndarray) -> dict[str, dict[str, float]]:
    q01, q99 = np.quantile(values.astype(np.float64), (0.01, 0.99), axis=0)
    rows = zip(names, values.min(0), q01, q99, values.max(0), strict=True)
    return {name: {"min": float(a), "q01": float(b), "q99": float(c), "max": float(d)} for name, a, b, c, d in rows}


def _range(lengths: list[int]) -> str:
    return f"{min(lengths)}" if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_show(item)}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list):
        return ", ".join(_show(item) for item in value)
    return str(value)
