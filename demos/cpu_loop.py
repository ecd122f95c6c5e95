"""How fast the streaming loop is on a CPU, against what it was at another commit and against plain PyTorch.

    python demos/cpu_loop.py d78f09a                                  # the shipped model
    python demos/cpu_loop.py d78f09a --model runs/mine/model --chunks 200 --out cpu_loop.json

One process per arm, each with its own copy of the code, all with the same model, beginning, actions and seed. They take
turns, chunk by chunk, so that other load meets all alike. What counts is the processor time of a chunk: sampling, the
pass that writes the memory, and decoding to 8-bit pictures. Pictures are compared with those of the first arm.

Arms: `then`, the commit; `now`, this checkout; `plain`, this checkout with the backend setting `sdpa`: every block in
its separate operations, attention by PyTorch's `scaled_dot_product_attention` over the past and the chunk, concatenated
in every layer and step.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import tyro
from numpy.typing import NDArray

from worldmodel.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "demos" / "models" / "doom"
WARM = 6  # first chunks, which are not counted


class Arm:
    """A process that makes one chunk whenever it is asked to."""

    def __init__(self, tree: Path, model: Path, seed: int, backend: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        self.name = f"the process of {tree} ({backend or 'default'})"
        command = [sys.executable, __file__, "--stream", str(tree), str(model.resolve()), str(seed), backend]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def next(self) -> tuple[float, NDArray[np.uint8]]:
        """Seconds of processor time, and the pictures [T, H, W, 3]."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(b"\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise UserError(f"{self.name} ended before it had made its chunk: above is why")
        head = json.loads(line)
        pixels = stdout.read(int(np.prod(head["shape"])))
        return head["seconds"], np.frombuffer(pixels, np.uint8).reshape(head["shape"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def stream(tree: str, model: str, seed: str, setting: str) -> None:
    """What the process of an arm does, in the code of its own tree. setting: of the backend, "" for the default."""
    import worldmodel
    from worldmodel import noise
    from worldmodel.chunk import ActionControl
    from worldmodel.models.world import WorldModel
    from worldmodel.pixels import to_uint8
    from worldmodel.rollout import start, step

    if Path(worldmodel.__file__).resolve().parents[1] != Path(tree).resolve():
        raise RuntimeError(f"this is the code of {worldmodel.__file__}, not of {tree}")
    if setting:
        from worldmodel.kernels import backend

        backend.use(setting)
    torch.set_num_threads(1)
    world, row = WorldModel.load(model), torch.tensor([int(seed)])
    context = None if world.starts is None else world.starts.select(torch.tensor([0]))
    k, a = world.dit.chunk, world.dit.cfg.actions
    with torch.no_grad():
        state, decoder = start(world.dit, world.stream.memory, row, context), None
        for _ in sys.stdin:
            index = state.frame[:, None] + torch.arange(k)
            action = noise.normal(row, index, 1, (a,)).clamp(-1, 1)
            control = ActionControl(action, torch.full((1, k), a > 0))
            begin = time.process_time()
            chunk, state = step(world.dit, world.stream.sampler, control, state, world.stream.context_time)
            pixels, decoder = world.tokenizer.decode_stream(chunk.x, decoder)
            pictures = to_uint8(pixels)[0]
            taken = time.process_time() - begin
            head = json.dumps({"seconds": taken, "shape": pictures.shape}).encode()
            sys.stdout.buffer.write(head + b"\n" + pictures.tobytes())
            sys.stdout.buffer.flush()


def compare(
    revision: tyro.conf.Positional[str],
    model: Path = SHIPPED,
    chunks: int = 100,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Time this checkout against a commit. revision: as git names it; chunks: of every arm; out: a JSON file."""
    from worldmodel.calibration import calibrate
    from worldmodel.evaluate.report import Metric, Report
    from worldmodel.evaluate.report_files import write
    from worldmodel.evaluate.timing import around, calibration_metrics, quotient_of_medians
    from worldmodel.folders import check_creatable
    from worldmodel.models.world import WorldModel
    from worldmodel.options import check_range, check_seeds

    check_range(2, chunks=chunks)  # an interval needs two
    check_seeds(seed=seed)
    if out is not None:
        check_creatable(out)
    WorldModel.load(model)  # its errors are told here, not in the processes
    commit = find_commit(revision, ROOT)
    before = calibrate()
    with tempfile.TemporaryDirectory() as folder:
        check_out(commit, Path(folder))
        arms = {
            "then": Arm(Path(folder), model, seed, ""),
            "now": Arm(ROOT, model, seed, ""),
            "plain": Arm(ROOT, model, seed, "sdpa"),
        }
        made = [{name: arm.next() for name, arm in arms.items()} for _ in range(chunks + WARM)]
        for arm in arms.values():
            arm.close()
    load = around(before, calibrate())
    seconds = {name: np.array([turn[name][0] for turn in made[WARM:]]) for name in arms}
    metrics = {"now_over_then": quotient_of_medians(seconds["then"], seconds["now"])}
    metrics["now_over_plain"] = quotient_of_medians(seconds["plain"], seconds["now"])
    frames = len(made[0]["then"][1])
    for name, taken in seconds.items():
        low, middle, high = np.quantile(taken, (0.25, 0.5, 0.75)) * 1e3
        metrics[f"{name}_chunk"] = Metric(middle, "ms", chunks, (low, high))
        metrics[f"{name}_frames_per_second"] = Metric(frames / middle * 1e3, "frames/s", chunks)
        gaps = [np.abs(turn[name][1].astype(int) - turn["then"][1]).max() for turn in made]
        metrics[f"{name}_difference"] = Metric(max(gaps), "levels of 255", len(made))
    report = Report(
        command=f"python demos/cpu_loop.py {revision} --model {model.name} --chunks {chunks} --seed {seed}",
        seeds=(seed,),
        metrics=metrics | calibration_metrics(load),
        headline=tuple(metrics | calibration_metrics(load)),
        verdicts=(
            ("at least 1.3 x the frames/s of then", metrics["now_over_then"].value >= 1.3,
             f"{metrics['now_over_then'].value:.2f} x"),
            ("pictures within one level", metrics["now_difference"].value <= 1,
             f"{metrics['now_difference'].value:.0f}"),
        ),
    )  # fmt: skip
    print("\n".join(report.lines()))
    write(report, json=out)


def find_commit(revision: str, checkout: Path) -> str:
    """The full name of the commit that a checkout's git knows as `revision`; a UserError if it knows none."""
    if not (checkout / ".git").exists():
        raise UserError(f"{checkout}: no checkout of git, so it has no commit {revision} to be timed against")
    command = ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"]
    try:
        found = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UserError("git is not installed, and the other commit's files come from it") from error
    if found.returncode:
        raise UserError(f"{checkout}: has no commit {revision} {found.stderr.strip()}".rstrip())
    return found.stdout.strip()


def check_out(commit: str, folder: Path) -> None:
    """Put the files of a commit into a folder."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


def main() -> int:
    try:
        tyro.cli(compare)
    except UserError as error:
        print(f"cpu_loop: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stream"]:
        stream(*sys.argv[2:])
    else:
        sys.exit(main())
