"""Everything once, small: collect a maze, train on it, generate, evaluate on other episodes. Minutes on a laptop.

    make quickstart            or: python demos/quickstart.py runs/quickstart --steps 80

Each line is a command that you can type yourself; `worldmodel COMMAND --help` explains it.
"""

import argparse
import time
from pathlib import Path

from worldmodel.cli import main

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "maze.py"
BIN = ".venv/bin/"  # where `make` installs the command
JUDGED = """
Now the evaluation, on episodes that the model has not seen. After so little training it is not expected to pass: a
verdict of FAIL below is what an honest judge says of a minute's work, not a fault of the installation."""


def making(out: Path, steps: int) -> list[str]:
    """The quickstart up to a trained model, as lines for the command line."""
    return [
        f"collect maze --episodes 24 --frames 96 --size 32 --out {out}/maze",
        f"inspect {out}/maze",
        f"encode {out}/maze --tokenizer pixels --out {out}/latents",
        f"estimate {CONFIG} --data.path {out}/latents --out {out}/run",
        f"train {CONFIG} --data.path {out}/latents --out {out}/run --steps {steps} --schedule.warmup 5 --save-every 40 "
        "--validate-every 40",
        f"rollout {out}/run --data {out}/latents --frames 64 --out {out}/rollout.mp4",
    ]


def judging(out: Path) -> list[str]:
    """Its evaluation, on episodes of another seed: never judge a model on what it was trained on."""
    return [
        f"collect maze --episodes 4 --seed 1000 --frames 96 --size 32 --out {out}/maze_test",
        f"evaluate latency {out}/run --out {out}/latency --frames 200",
        f"evaluate drift {out}/run --data {out}/maze_test --frames 48 --starts 2 --clips 8 --out {out}/drift",
    ]


def follow(lines: list[str]) -> int:
    """Run the lines one after another; returns the exit code of the first that fails, or 0."""
    for line in lines:
        print(f"\n$ worldmodel {line}", flush=True)
        if code := main(line.split()):
            return code
    return 0


def run(out: Path, steps: int) -> int:
    """Run all commands; returns the exit code of the first that fails, or 0."""
    began = time.perf_counter()
    if code := follow(making(out, steps)):
        return code
    print(JUDGED, flush=True)
    if code := follow(judging(out)):
        return code
    print(
        f"\nAll of it took {time.perf_counter() - began:.0f} s. After {steps} steps, about a minute of training, the "
        f"pictures are rough; for a real one, collect more and train for an hour:\n"
        f"  {BIN}worldmodel collect maze --episodes 64 --frames 160 --size 32 --out runs/data/maze\n"
        f"  {BIN}worldmodel encode runs/data/maze --tokenizer pixels --out runs/data/maze_latents\n"
        f"  {BIN}worldmodel train configs/maze.py\n"
        f"Drive this one: {BIN}worldmodel serve {out}/run --real maze"
    )
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=Path("runs/quickstart"))
    parser.add_argument("--steps", type=int, default=80)
    arguments = parser.parse_args()
    raise SystemExit(run(arguments.out, arguments.steps))
