"""Commands about a run: its training, and what it would cost."""

import argparse
import inspect
import os
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import tyro

from worldmodel.errors import UserError
from worldmodel.options import use_backend


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
