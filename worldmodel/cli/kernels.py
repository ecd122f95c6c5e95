"""Commands about the kernels."""

from pathlib import Path

from worldmodel.cli.models import DOOM, open_model
from worldmodel.errors import UserError


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
    checkpoint: Path = DOOM,
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
    report = kernel_bench(open_model(checkpoint, place, threads), torch.device(place), short=short)
    for note in report.notes[:1]:
        print(note)
    return finish(report, "kernels", out, json)
