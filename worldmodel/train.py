"""Train: one readable loop for every objective.

    python -m worldmodel train configs/maze.py
    python -m worldmodel train configs/maze.py --steps 20 --out runs/try
    torchrun --standalone --nproc-per-node 2 -m worldmodel train configs/maze.py

The loop resumes by itself from the newest checkpoint in the run's folder. A step is a function of (weights, optimizer,
step number) alone: data, noise and times are keyed by the global index of each sample, so that stopping, resuming and
splitting over processes change nothing.
"""

import math
import time
from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch import Tensor

from worldmodel import artifact, checkpoint
from worldmodel.checkpoint import Role
from worldmodel.ema import Ema
from worldmodel.errors import UserError
from worldmodel.models.autoencoder import Autoencoder
from worldmodel.models.dit import DiT
from worldmodel.models.world import WorldModel
from worldmodel.objectives.base import Objective, Update
from worldmodel.progress import Line, StopSignal
from worldmodel.run import Run
from worldmodel.serial import to_json


def train(run: Run) -> dict[str, float]:
    """Train to `run.steps` and return the last metrics; resumes from `run.out` if it holds a checkpoint.

    SIGTERM and Ctrl-C finish the step, save and return. A loss that is not finite, memory that runs out and a disk that
    is full end with a UserError; the last good checkpoint stays.
    """
    if run.threads is not None:
        torch.set_num_threads(run.threads)
    accelerator = _accelerator(run)
    torch.manual_seed(run.seed)
    model = artifact.build(run)
    if isinstance(model, DiT):
        model.checkpointing = run.checkpointing
        for block in model.blocks if run.compile else ():
            block.compile()
    wrapped, *optimizers = accelerator.prepare(model, *run.optimizer.build(model))
    objective = run.objective.build(wrapped, run.model, run.seed)
    roles = {"model": Role(wrapped, optimizers, Ema(wrapped, run.ema) if run.ema else None)}
    step, best = _resume(run, roles, objective)

    main, metrics = accelerator.is_main_process, dict[str, float]()
    line, stop = Line(main, run.steps, step), StopSignal()
    for clips in run.data.batches(step, accelerator.process_index, accelerator.num_processes, run.micro):
        if step >= run.steps:
            break
        started, rate = time.perf_counter(), run.schedule(step, run.steps)
        clips = [clip.to(accelerator.device) for clip in clips]
        try:
            for update in objective.updates(clips):
                for name, value in apply(accelerator, roles[update.role], update, run, rate).items():
                    metrics[f"{update.role}/{name}"] = value
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"out of memory at step {step}: raise micro (now {run.micro}), turn on checkpointing (now "
                f"{run.checkpointing}) or shorten the clips; `estimate` shows what a run needs ({error})"
            ) from error
        step += 1
        frames = sum(clip.x.shape[0] * clip.x.shape[1] for clip in clips) * accelerator.num_processes
        line.update(step, metrics, frames, time.perf_counter() - started)
        asked = torch.tensor(stop.requested, device=accelerator.device)
        stopping = bool(accelerator.reduce(asked.int(), "sum"))  # all ranks leave at the same step

        # Once in a while, and always at the end: log, validate, save, draw a sample.
        last = stopping or step == run.steps
        if last or step % run.log_every == 0:
            accelerator.log({**metrics, "learning_rate": run.optimizer.lr * rate}, step=step)
        if step == run.steps or step % run.validate_every == 0:
            found = validate(run, objective, roles["model"])
            accelerator.log(found, step=step)
            metrics |= found
            line.note(f"step {step}: " + "  ".join(f"{name} {value:.5f}" for name, value in metrics.items()))
            best = min(best or (math.inf, step), (found["validation/loss"], step))
        if last or step % run.save_every == 0:
            files = checkpoint.tensors_of(roles)
            if main:
                previous = [int(folder.name.removeprefix("step_")) for folder in checkpoint.steps(run.out)[-1:]]
                keep = [*previous, *([best[1]] if best else [])]
                checkpoint.save(run.out, step, files, _state(run, objective, best, metrics), keep)
                artifact.save(_made(run, files, step, metrics), run.out / "model")
            accelerator.wait_for_everyone()
        if main and (step == run.steps or step % run.sample_every == 0):
            made = _made(run, checkpoint.tensors_of(roles), step, metrics)
            artifact.look(made, run, run.out / "samples" / f"step_{step:08d}.mp4")
        if stopping:
            line.note(f"stopped at step {step}, saved; the same command continues")
            break

    line.close()
    stop.close()
    accelerator.end_training()
    return metrics


def apply(accelerator: Accelerator, role: Role, update: Update, run: Run, rate: float) -> dict[str, float]:
    """Backpropagate an update's losses one after another, synchronise on the last, and step its role's optimizers."""
    total = torch.zeros((), device=accelerator.device)
    losses = iter(update.losses)
    for i in range(update.count):
        last = i + 1 == update.count
        with nullcontext() if last else accelerator.no_sync(role.model):
            loss = next(losses)
            accelerator.backward(loss)
        total += loss.detach()
    norm = accelerator.clip_grad_norm_(role.model.parameters(), run.clip_grad)
    mean: Tensor = accelerator.reduce(total, "mean")
    if not (math.isfinite(mean.item()) and math.isfinite(float(norm))):
        raise UserError(
            f"the loss is {mean.item()} and its gradient norm {float(norm)}: lower the learning rate (now "
            f"{run.optimizer.lr}) or clip_grad (now {run.clip_grad}); {checkpoint.last(run.out)}"
        )
    for optimizer in role.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = run.optimizer.lr * rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if role.ema is not None:
        role.ema.update(role.model)
    others = {name: float(accelerator.reduce(value, "mean")) for name, value in update.metrics.items()}
    return {"loss": mean.item(), "grad_norm": float(norm), **others}


def validate(run: Run, objective: Objective, role: Role) -> dict[str, float]:
    """Mean of the objective's held-out losses, with the averaged weights where there are any."""
    values: dict[str, list[float]] = {}
    with role.ema.applied(role.model) if role.ema else nullcontext():
        device = next(role.model.parameters()).device
        for clip in run.data.validation_batches(run.validate):
            for name, value in objective.validate(clip.to(device)).items():
                values.setdefault(f"validation/{name}", []).append(float(value))
    return {name: sum(v) / len(v) for name, v in values.items()}


def _accelerator(run: Run) -> Accelerator:
    folders = ProjectConfiguration(project_dir=str(run.out), logging_dir=str(run.out / "tensorboard"))
    precision = {"fp32": "no", "bf16": "bf16"}[run.precision]
    cpu = not (torch.cuda.is_available() or torch.backends.mps.is_available())
    accelerator = Accelerator(cpu=cpu, mixed_precision=precision, log_with="tensorboard", project_config=folders)
    accelerator.init_trackers("")
    return accelerator


def _state(run: Run, objective: Objective, best: tuple[float, int] | None, metrics: dict[str, float]) -> dict[str, Any]:
    """What a checkpoint holds besides tensors: the data it saw, its action range, where it stands."""
    return {
        "model": to_json(run.model),
        "actions": to_json(run.data.action_spec),
        "split": run.data.split,
        "objective": objective.state_dict(),
        "best": best,
        "metrics": metrics,
        "seed": run.seed,
    }


def _resume(run: Run, roles: dict[str, Role], objective: Objective) -> tuple[int, tuple[float, int] | None]:
    """The step to go on from, and the best validation loss so far with its step."""
    found = checkpoint.steps(run.out)
    if not found:
        return 0, None
    folder, state = found[-1], checkpoint.read_state(found[-1])
    for key, own in (("model", run.model), ("actions", run.data.action_spec), ("split", None)):
        expected = run.data.split if key == "split" else to_json(own)
        if state.get(key) != expected:
            raise UserError(f"{folder / 'state.json'}: '{key}' differs from this run's; choose another out folder")
    checkpoint.restore(folder, roles)
    objective.load_state_dict(state["objective"])
    return state["step"], tuple(state["best"]) if state["best"] else None


def _made(
    run: Run, files: dict[str, dict[str, Tensor]], step: int, metrics: dict[str, float]
) -> WorldModel | Autoencoder:
    """What the run has made so far, with averaged weights where there are any."""
    average = {name: value for name, value in files.get("model.ema", {}).items() if name != "updates"}
    card = {"step": step, "seed": run.seed, "weights": "averaged" if average else "last", "metrics": metrics}
    return artifact.make(run, {**files["model"], **average}, card)
