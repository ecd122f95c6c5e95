"""The command line: the front door, and the only file here that may import datasets/ and policies/.

A command is a function; its docstring is the help and its arguments are the options. Its module is imported when the
command is chosen, so that a missing simulator matters only to who uses it.
"""

import argparse
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import tyro

from worldmodel import __version__
from worldmodel.errors import UserError, out_of_memory
from worldmodel.heap import keep_freed_memory
from worldmodel.options import check_range, check_seeds, check_threads, use_backend, with_backend


@dataclass(frozen=True, slots=True)
class Command:
    """Where a command's function lives, and which of its arguments are given without a name."""

    module: str
    function: str
    positional: tuple[str, ...]
    help: str


HERE, EVALUATE = "worldmodel.cli", "worldmodel.datasets.evaluate"
ADAPTATION = "worldmodel.policies.adaptation_commands"
FACE = "worldmodel.face.tools"
COMMANDS = {
    "demo": Command(HERE, "demo", (), "drive the shipped world in the browser"),
    "robot-demo": Command(HERE, "robot_demo", ("checkpoint",), "break a robot in the browser, watch it correct itself"),
    "collect": Command(HERE, "collect", ("world",), "simulator -> LeRobotDataset v3"),
    "inspect": Command("worldmodel.datasets.inspect", "inspect", ("path",), "what is this, and what comes next?"),
    "convert": Command("worldmodel.datasets.convert", "convert", ("source", "out"), "videos -> LeRobotDataset v3"),
    "encode": Command("worldmodel.datasets.encode", "encode", ("data",), "pre-compute latents"),
    "trials": Command(ADAPTATION, "trials", ("checkpoint",), "a policy's episodes on shifted robots, to adapt from"),
    "train": Command(HERE, "train", (), "train what a file in configs/ describes"),
    "estimate": Command(HERE, "estimate", (), "parameters, memory and time of a run before it starts"),
    "rollout": Command(HERE, "rollout", ("checkpoint",), "long generation to a video"),
    "evaluate drift": Command(EVALUATE, "drift", ("checkpoint",), "how pictures change as a rollout gets long"),
    "evaluate compare": Command(EVALUATE, "compare", ("arms",), "drift of several ways to train, over seeds"),
    "evaluate context": Command(EVALUATE, "context", ("models",), "how long it remembers what it has seen"),
    "evaluate actions": Command(EVALUATE, "actions", ("checkpoint",), "does the video follow its actions?"),
    "evaluate latency": Command(EVALUATE, "latency", ("checkpoint",), "frames per second, early and late"),
    "evaluate memory": Command(EVALUATE, "memory", ("checkpoint",), "cost of every memory against context length"),
    "evaluate policy": Command(
        "worldmodel.policies.evaluate", "policy", ("checkpoint",), "success of a policy on robots"
    ),
    "evaluate chunking": Command(
        "worldmodel.policies.chunking", "chunking", ("checkpoint",), "chunks of a policy whose robot moves meanwhile"
    ),
    "evaluate policy-latency": Command(
        "worldmodel.policies.serving.latency", "policy_latency", ("checkpoint",), "how long robots wait for it"
    ),
    "evaluate recovery": Command(ADAPTATION, "recovery_command", ("checkpoint",), "how a policy adapts over trials"),
    "evaluate swap": Command(
        "worldmodel.datasets.faces.evaluate", "swap", ("methods",), "face swaps beside baselines, on every axis"
    ),
    "kernels check": Command(HERE, "kernels_check", (), "prove the kernels right without a GPU, compile them for many"),
    "kernels bench": Command(HERE, "kernels_bench", (), "time the kernels against the physical bound and peers"),
    "export": Command(HERE, "export", ("checkpoint", "out"), "a folder to share, for diffusers, lerobot or the hub"),
    "serve": Command(HERE, "serve", ("checkpoint",), "the live stream of your own model"),
    "serve-policy": Command(
        "worldmodel.policies.serving.server", "serve_policy", ("checkpoint",), "a policy for robots, over a WebSocket"
    ),
    "swap": Command("worldmodel.face.command", "swap", ("target",), "a video's faces for that of a reference picture"),
    "swap-demo": Command(
        "worldmodel.face.live.command", "swap_demo", ("target",), "swap faces live in the browser, or for programs"
    ),
    "face fetch": Command(FACE, "fetch_command", (), "get the published networks that swap uses"),
    "face consent": Command(FACE, "consent_command", ("reference",), "the record of consent that swap asks for"),
    "face gather": Command(
        "worldmodel.datasets.faces.gather", "gather_command", ("videos",), "aligned faces of videos, to train a swap on"
    ),
    "face reverse": Command(
        "worldmodel.datasets.faces.reverse", "reverse_command", ("faces",), "swapped inputs for gathered faces"
    ),
    "face manifest": Command(
        "worldmodel.datasets.faces.manifest", "manifest_command", ("videos",), "what a swap is evaluated on"
    ),
    "face verify": Command(FACE, "verify_command", ("video",), "check a swapped video's signed side file"),
    "doctor": Command("worldmodel.doctor", "main", (), "what works on this machine, and why not"),
}
GROUPS = ("evaluate", "face", "kernels")  # of commands with two words
RUN_MODELS = ("demo", "robot-demo", "trials", "rollout", "serve", "serve-policy", "swap", "swap-demo", "evaluate")
SHIPPED = Path(__file__).resolve().parent.parent / "demos" / "models" / "doom"
CONFIGS = SHIPPED.parent.parent.parent / "configs"
SHIPPED_BASE = SHIPPED.with_name("doom_base")  # the same model before its training on its own rollouts


def main(argv: list[str] | None = None) -> int:
    """Run a command; bad input is one line on stderr and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    name = argv[0] if argv else "--help"
    if name in GROUPS and argv[1:2] not in ([], ["-h"], ["--help"]):
        name, argv = f"{name} {argv[1]}", argv[1:]
    if name in ("-h", "--help", *GROUPS):
        print(_overview(name if name in GROUPS else ""))
        return 0
    if name == "--version":
        print(f"worldmodel {__version__}")
        return 0
    try:
        if name not in COMMANDS:
            raise UserError(f"no command '{name}'; there are {', '.join(COMMANDS)}")
        command = COMMANDS[name]
        keep_freed_memory()
        function = getattr(importlib.import_module(command.module), command.function)
        if name in ("train", "estimate"):  # their options are the fields of the configuration that comes first
            return function(argv[1:])
        function = _with_positional(function, command.positional)
        if name.split()[0] in RUN_MODELS:
            function = with_backend(function)
        return tyro.cli(function, prog=f"worldmodel {name}", args=argv[1:])
    except UserError as error:
        print(_line(error), file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        print(_line(f"out of memory: {str(error).strip() or 'no more can be had'}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _line(error: UserError | str) -> str:
    """The error and its notes as one line."""
    text = "; ".join((str(error), *getattr(error, "__notes__", ())))
    return "error: " + " ".join(text.split())


def _overview(group: str) -> str:
    """The commands whose names begin with `group`."""
    lines = "\n".join(f"  {name:23} {command.help}" for name, command in COMMANDS.items() if name.startswith(group))
    return f"usage: worldmodel COMMAND [OPTIONS]\n\n{lines}\n\nworldmodel COMMAND --help explains one, with an example."


def _with_positional(function: Callable[..., int], names: tuple[str, ...]) -> Callable[..., int]:
    """The same function, with some arguments given by their place on the command line."""
    signature = inspect.signature(function, eval_str=True)
    parameters = [
        p.replace(annotation=tyro.conf.Positional[p.annotation]) if p.name in names else p
        for p in signature.parameters.values()
    ]

    def command(*args: Any, **options: Any) -> int:
        return function(*args, **options)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
    return command


def train(args: list[str]) -> int:
    """Train what a file in configs/ describes; it resumes by itself from its out folder.

    Example: worldmodel train configs/maze.py --steps 500 --data.batch 4

    Every field of the run is an option: worldmodel train CONFIG --help lists them. So is --backend: how the kernels of
    attention and around it are computed (auto, triton, xformers, flex, sdpa or reference).
    """
    from worldmodel.train import train as run_training
    from worldmodel.world_recipe import recipe_of

    parser = argparse.ArgumentParser("worldmodel train CONFIG", add_help=False, allow_abbrev=False)
    parser.add_argument("--backend", default="auto")
    own, rest = parser.parse_known_args(args)
    run = _run("train", train, rest)
    if run is None:
        return 0
    with use_backend(own.backend):
        metrics = run_training(run)
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"{run.out / 'model'}: " + "  ".join(f"{name} {value:.5f}" for name, value in metrics.items()))
        print(f"next: worldmodel {recipe_of(run).next_command}")
    return 0


def estimate(args: list[str]) -> int:
    """Parameters, memory and time per step of a run, before it starts.

    Example: worldmodel estimate configs/wan_1_3b.py --tflops 60 --micro 4

    --tflops is what the device reaches in training (a large GPU in bf16: about 0.4 of its data sheet's dense rate);
    without it, the rate of one core of this machine now (none for bf16). --json FILE writes the numbers. Every field of
    the run is an option. --stream FPS instead: what the model costs where it is deployed with the run's memory and
    sampler, and the rate that FPS latent frames a second ask for.

    Example: worldmodel estimate configs/swap_full_size.py --stream 20 --tflops 80
    """
    from worldmodel.estimate import Workload, print_estimate
    from worldmodel.models.dit import DiTConfig
    from worldmodel.run import Run
    from worldmodel.stream_estimate import print_stream

    parser = argparse.ArgumentParser("worldmodel estimate CONFIG", add_help=False, allow_abbrev=False)
    parser.add_argument("--tflops", type=float)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--stream", type=float, metavar="FPS")
    own, rest = parser.parse_known_args(args)
    run = _run("estimate", estimate, rest)
    if run is None:
        return 0
    title = f"estimate {' '.join(args)}"
    if own.stream is not None:
        model, stream = getattr(run, "model", None), getattr(run, "stream", None)
        if not isinstance(model, DiTConfig) or stream is None:
            raise UserError(f"{rest[0]}: --stream needs a run of a streamed transformer, not a {type(run).__name__}")
        return print_stream(
            model, stream, own.stream, precision=run.precision, tflops=own.tflops, title=title, json=own.json
        )
    if not isinstance(run, Run):
        raise UserError(f"{rest[0]}: estimate knows world models and tokenizers, this is a {type(run).__name__}")
    return print_estimate(Workload.of(run), title=title, tflops=own.tflops, json=own.json)


def _run(name: str, command: Callable[..., int], args: list[str]) -> Any:
    """The run of the configuration named first, with the options after it applied to its fields; None after --help."""
    from worldmodel.run import Run, load_training

    if not args or args[0] in ("-h", "--help"):
        print(f"usage: worldmodel {name} CONFIG [OPTIONS]\n\n{inspect.getdoc(command)}")
        return None
    run, rest = _turned_off(load_training(args[0]), args[1:])
    kind: Any = type(run)
    if isinstance(run, Run):
        kind = kind[type(run.data)]  # so that the data's own fields are options too
    config = (tyro.conf.AvoidSubcommands,)
    return tyro.cli(kind, prog=f"worldmodel {name} {args[0]}", default=run, args=rest, config=config)


def _turned_off(run: Any, args: list[str]) -> tuple[Any, list[str]]:
    """Apply `--lora None` and take it out of the options: tyro knows the fields of such a part, but not the part."""
    kinds = {name: get_args(hint) for name, hint in get_type_hints(type(run)).items()}
    parts = {f"--{name}": name for name, of in kinds.items() if type(None) in of and any(map(is_dataclass, of))}
    rest = [part for arg in args for part in (arg.split("=", 1) if arg.endswith("=None") else (arg,))]
    for at in reversed(range(len(rest) - 1)):
        if rest[at] in parts and rest[at + 1] == "None":
            run = replace(run, **{parts[rest[at]]: None})
            del rest[at : at + 2]
    return run, rest


def collect(
    world: str,
    out: Path,
    episodes: int = 20,
    frames: int = 500,
    seed: int = 0,
    size: int = 64,
    camera: str | None = None,
    policy: str | None = None,
    depth: bool = False,
    pose: tuple[float, ...] = (),
) -> int:
    """Record a simulated world as a LeRobotDataset v3.

    Example: worldmodel collect maze --episodes 50 --out data/maze

    Worlds: maze, maze/small, maze/large, maze/home, doom, doom/freedoom, metaworld/TASK, pusht, and for policies
    robot/TASK (a task of Meta-World under absolute targets of the hand) or robot/TASK+SHIFT, such as
    robot/reach+encoder-offset:0.03,0,0. Episode i has seed --seed + i. In maze and doom, --policy revisit turns away
    from views and comes back; for robots, --policy jolted shows how to come back. --pose 16 8 4 2 adds to every action
    the pose that it leads to, in waves of these lengths. Ctrl-C keeps what is done.
    """
    from worldmodel.datasets.collect import collect as record
    from worldmodel.datasets.worlds import open_world
    from worldmodel.datasets.worlds.base import WorldOptions

    opens: Any = open_world
    if world.startswith("robot/"):
        from worldmodel.policies.robot import open_robot as opens
    made = record(world, episodes, out, frames, seed, WorldOptions(size, camera, policy, depth), opens=opens, pose=pose)
    print(f"{out}: {len(made.episodes)} episodes, {made.frames} frames of {world}, policy {made.policy}")
    return 0 if made.stopped is None else 130


def rollout(
    checkpoint: Path,
    out: Path,
    data: Path | None = None,
    frames: int = 240,
    seed: int = 0,
    steps: int | None = None,
    scale: int = 4,
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """Generate a long video and write it as MP4.

    Example: worldmodel rollout demos/models/doom --frames 960 --out doom.mp4

    Without --data the model's own beginnings are continued under wandering actions. --data is a folder of latents: its
    held-out clips (of a single episode: any) give the beginning and the recorded actions. --frames counts latent
    frames, --steps the sampler's model calls per chunk, --scale enlarges the pictures. --threads: small models are
    fastest with one.
    """
    from worldmodel.datasets.latents import LatentClips
    from worldmodel.generate import write_rollout
    from worldmodel.pixels import check_video
    from worldmodel.sampler import with_steps

    check_range(1, frames=frames, steps=steps)
    check_range(1, 64, scale=scale)
    check_seeds(seed=seed)
    check_video(out)
    world = _world(checkpoint, device, threads)
    sampler = world.stream.sampler if steps is None else with_steps(world.stream.sampler, steps)
    recording = None
    if data is not None:
        length = (-(-frames // world.dit.chunk) + 1 + sampler.lookahead) * world.dit.chunk
        clips = LatentClips(path=(data,), length=length, batch=4, actions=world.actions)
        single = len(clips.info.episodes) == 1  # of one episode, none can be held out
        recording = next(replace(clips, validation=0.0).batches())[0] if single else next(clips.validation_batches(1))
    write_rollout(world, recording, out, frames, seed, sampler, scale)
    print(out)
    return 0


def export(
    checkpoint: Path,
    out: Path,
    diffusers: bool = False,
    lerobot: bool = False,
    push: str | None = None,
    public: bool = False,
) -> int:
    """Write a trained model to a new folder, as ours or as diffusers or lerobot reads it, and upload it.

    Example: worldmodel export runs/wan_1_3b exported --diffusers

    --diffusers writes a WanTransformer3DModel (for models that came from one), action parts beside it. --lerobot writes
    a robot policy for lerobot-eval and lerobot-train, with processors and statistics. --push uploads
    the folder to the hub under that name ("owner/model"), private unless --public.
    """
    from worldmodel.folders import check_creatable
    from worldmodel.hub import push as upload
    from worldmodel.models.wan import export_wan

    if out.exists():
        raise UserError(f"{out} exists already: give a new folder")
    if diffusers and lerobot:
        raise UserError("export: give either --diffusers or --lerobot")
    check_creatable(out)
    if lerobot:
        from worldmodel.policies.lerobot_export import export_to_lerobot

        export_to_lerobot(checkpoint, out)
    elif diffusers:
        export_wan(_world(checkpoint, "cpu", 1).dit, out)
    else:
        _world(checkpoint, "cpu", 1).save(out)
    print(out if push is None else upload(out, push, private=not public))
    return 0


def kernels_check(quick: bool = False, only: tuple[str, ...] | None = None, json: Path | None = None) -> int:
    """Prove the GPU kernels right, and compile them for every kind of GPU, without one.

    Example: worldmodel kernels check --quick

    Two processes side by side. One runs the kernels in Triton's interpreter: awkward shapes, strides and scales, memory
    full of NaN, gradients, repeats bit for bit, errors against fp64, torch.library's opcheck. The other compiles what
    ships to machine code and looks at registers, spills, shared memory and matrix instructions. --quick takes the
    shorter cases and two kinds of GPU, --only OP ... the ops named. --json FILE writes what was found. The exit code is
    1 if anything is wrong.
    """
    from worldmodel.evaluate.report import device_name, versions
    from worldmodel.folders import check_creatable, make_folder
    from worldmodel.kernels.check.ops import OPS
    from worldmodel.kernels.check.report import started
    from worldmodel.kernels.triton_needs import INSTALLED
    from worldmodel.progress import progress_bar
    from worldmodel.serial import write_json

    if not INSTALLED:
        raise UserError("kernels check: the package triton is not installed (pip install 'worldmodel[gpu]')")
    chosen = tuple(OPS) if only is None else only
    unknown = sorted(set(chosen) - set(OPS))
    if unknown or not chosen:
        wrong = f"no op {', '.join(unknown)}" if unknown else "no op was named"
        raise UserError(f"kernels check --only: {wrong}; there are {', '.join(OPS)}")
    if json is not None:
        check_creatable(json)
    with started(quick, chosen) as running:
        with progress_bar("kernels check", running.total(), unit="checks") as advance:
            for _ in running.findings():
                advance(1)
        found = running.report()
    print(found.table())
    if json is not None:
        command = f"kernels check{' --quick' * quick}{'' if only is None else ' --only ' + ' '.join(only)}"
        make_folder(json.parent)
        result = {"command": command, "versions": versions(), "device": device_name("cpu"), "seeds": []}
        write_json(result | {"metrics": found.metrics(), "checks": found.found()}, json)
    return 1 if found.failures else 0


def kernels_bench(
    short: bool = False,
    out: Path | None = None,
    json: Path | None = None,
    checkpoint: Path = SHIPPED,
    device: str | None = None,
    threads: int = 1,
) -> int:
    """Time every kernel against the physical bound, PyTorch, xformers and FlexAttention, and the whole loop.

    Example: worldmodel kernels bench --json kernels.json

    Runs on the GPU if there is one (with and without CUDA graphs), else on the CPU, whose backends it then times. Ends
    within 5 minutes, with --short within 50 s. --checkpoint is the model of the loop. --device: such as cpu or cuda:1.
    """
    import torch

    from worldmodel.datasets.evaluate import finish
    from worldmodel.evaluate.kernel_bench import kernel_bench
    from worldmodel.folders import check_outputs

    check_outputs(out, file=json)
    place = ("cuda" if torch.cuda.is_available() else "cpu") if device is None else device
    report = kernel_bench(_world(checkpoint, place, threads), torch.device(place), short=short)
    for note in report.notes[:1]:
        print(note)
    return finish(report, "kernels", out, json)


def demo(port: int = 8000, host: str = "127.0.0.1", token: str | None = None, open_browser: bool = False) -> int:
    """Drive the shipped world in the browser.

    Example: worldmodel demo

    The page can switch to the model that it was made from, under the same keys.
    """
    if not SHIPPED.is_dir():
        raise UserError(f"{SHIPPED}: the shipped model is not here; it is part of the repository, not of the wheel")
    name, also = ("forced", (f"base={SHIPPED_BASE}",)) if SHIPPED_BASE.is_dir() else (None, ())
    return serve(
        SHIPPED, port=port, host=host, token=token, open_browser=open_browser, real="doom", name=name, also=also
    )


def robot_demo(
    checkpoint: Path | None = None,
    encoder: Path | None = None,
    task: str = "button-press",
    out: Path = Path("runs/robot_demo"),
    quick: bool = False,
    trials: int = 6,
    horizon: int = 200,
    seed: int = 0,
    port: int = 8000,
    host: str = "127.0.0.1",
    token: str | None = None,
    max_viewers: int = 8,
    open_browser: bool = False,
) -> int:
    """A policy on a simulated robot, live in the browser: break the robot, and watch the policy correct itself.

    Example: worldmodel robot-demo demos/models/button_press --encoder demos/models/button_press_context

    Without a checkpoint, policy and context encoder are made first, in --out: demonstrations by Meta-World's script,
    the policy, its trials on broken robots, the encoder; what was stopped goes on with the next call. --quick makes it
    in minutes and far too little of it: to see the page. --trials: of a round, after its first one. --horizon: control
    steps of a trial. Any --host that is not loopback needs a --token.
    """
    from worldmodel.policies.demo.command import show_robot
    from worldmodel.policies.demo.making import QUICK, Effort, Made, make
    from worldmodel.policies.demo.show import Plan

    plan = Plan(task=task.removesuffix("-v3"), horizon=horizon, trials=trials, seed=seed, viewers=max_viewers)
    plan.check()
    if checkpoint is None:
        if encoder is not None:
            raise UserError("--encoder: a context encoder belongs to a policy, give its folder first")
        if not CONFIGS.is_dir():
            raise UserError(
                f"{CONFIGS}: the configurations are not here; they are part of the repository, not of the wheel"
            )
        made = Made(out)
        if code := make(made, plan.task, QUICK if quick else Effort(), CONFIGS, main):
            return code
        checkpoint, encoder = made.policy, made.encoder
    return show_robot(checkpoint, encoder, plan, host=host, port=port, token=token, open_browser=open_browser)


def serve(
    checkpoint: Path,
    port: int = 8000,
    host: str = "127.0.0.1",
    token: str | None = None,
    max_sessions: int = 4,
    real: str | None = None,
    data: Path | None = None,
    open_browser: bool = False,
    device: str = "cpu",
    threads: int = 1,
    name: str | None = None,
    also: tuple[str, ...] = (),
) -> int:
    """Stream a world model live to browsers and programs.

    Example: worldmodel serve runs/maze_forced --also base=runs/maze --real maze

    --also NAME=FOLDER adds further models, between which the page switches under the same keys; --name is that of the
    first. A model that is given no name has that of its folder. All must have one tokenizer, chunk and action range.
    --real runs the simulator of that name beside the dream, under the same keys. --data gives recordings (a dataset or
    a folder of videos) whose frames a stream may start from. Any --host that is not loopback needs a --token.
    """
    from worldmodel.datasets.stage import frames_of, simulator
    from worldmodel.serve import serve as stream

    name = _name_of(checkpoint) if name is None else name
    others = _named(name, also)
    world = _world(checkpoint, device, threads)
    return stream(
        world,
        name=name,
        also={other: _world(folder, device, threads) for other, folder in others.items()},
        host=host,
        port=port,
        token=token,
        max_sessions=max_sessions,
        real=None if real is None else simulator(real, world),
        recordings=None if data is None else frames_of(data, world),
        open_browser=open_browser,
    )


def _named(first: str, also: tuple[str, ...]) -> dict[str, Path]:
    """Names and folders of `serve --also`; what stands before a "=" is a name unless it is part of a path."""
    named: dict[str, Path] = {}
    for each in also:
        name, sign, folder = each.partition("=")
        if not sign or "/" in name:
            name, folder = _name_of(Path(each)), each
        if name == first or name in named:
            raise UserError(f"--also {each}: another model has the name '{name}', give NAME=FOLDER with a new one")
        named[name] = Path(folder)
    return named


def _name_of(folder: Path) -> str:
    """What people call a model: the name of its folder, or of the run that made it."""
    folder = folder.resolve()
    return (folder.parent if folder.name == "model" else folder).name[:40].strip() or "world"


def _world(folder: Path, device: str, threads: int) -> Any:
    import torch

    from worldmodel.models.world import WorldModel

    check_threads(threads)
    torch.set_num_threads(threads)
    return WorldModel.find(folder, device)
