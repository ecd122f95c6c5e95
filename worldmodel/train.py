"""Train: one readable loop for every objective.

    python -m worldmodel train configs/maze.py
    python -m worldmodel train configs/maze.py --steps 20 --out runs/try
    torchrun --standalone --nproc-per-node 2 -m worldmodel train configs/maze.py

The loop resumes by itself from the newest checkpoint in the run's folder. A step is a function of (weights, optimizer,
step number) alone: data, noise and times are keyed by the global index of each sample, so that stopping, resuming and
splitting over processes change nothing.
"""

import errno
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch import Tensor, nn

from worldmodel import checkpoint
from worldmodel.capabilities import check
from worldmodel.checkpoint import Role
from worldmodel.chunk import Clip
from worldmodel.ema import Ema
from worldmodel.errors import Diverged, UserError, out_of_memory
from worldmodel.folders import alone
from worldmodel.identity import check_identity, frozen_weights, identity
from worldmodel.objectives.base import Objective, Update
from worldmodel.progress import Line, StopSignal, listed
from worldmodel.run import Recipe, Template, Training
from worldmodel.world_recipe import recipe_of

Best = tuple[float, int]
"""Lowest validation loss so far, and its step."""


def train(run: Training) -> dict[str, float]:
    """Train to `run.steps` and return the last metrics; resumes from `run.out` if it holds a checkpoint.

    SIGTERM and Ctrl-C finish the step, save and return; before the first step there is nothing to save, and they are a
    KeyboardInterrupt. A loss or validation loss that is not finite, memory that runs out and a disk that is full end
    with a UserError; the last good checkpoint stays. The last two checkpoints and the best one are kept.
    """
    main = os.environ.get("RANK", "0") == "0"  # before anything is set up
    recipe = recipe_of(run)
    with _advice(run, recipe), alone(run.out) if main else nullcontext(), StopSignal(at_once=True) as stop:
        return _train(run, recipe, stop)


def _train(run: Training, recipe: Recipe, stop: StopSignal) -> dict[str, float]:
    if recipe.compiles and (able := check("compile")).state != "ok":
        raise UserError(f"compile: {able.detail}; {able.advice}")
    accelerator = _accelerator(run)
    if run.threads is not None:  # after accelerate, which sets its own
        torch.set_num_threads(run.threads)
    torch.manual_seed(run.seed)
    model = recipe.build()
    frozen = frozen_weights(model)
    roles = {"model": _role(run, accelerator, model, run.ema)}
    objective = _objective(run, recipe, accelerator, roles)
    step, best, metrics = _resume(run, recipe, frozen, roles, objective)
    if step == 0 and run.steps:
        objective.begin(_batches(run, recipe, accelerator, 0))
    accelerator.init_trackers("")  # not before: what is refused leaves nothing behind

    main = accelerator.is_main_process
    template = recipe.template() if main and step < run.steps else None
    with Line(main, run.steps, step) as line:
        if step >= run.steps:
            line.note(f"{run.out} is at step {step} already, steps is {run.steps}: nothing to do")
        if recipe.compiles and step < run.steps:
            line.note("compiling, the first step takes a minute")
        batches = _batches(run, recipe, accelerator, step)
        stop.at_once = False
        while step < run.steps:
            started, clips = time.perf_counter(), next(batches)
            for update in objective.updates(clips):
                for name, value in apply(accelerator, roles[update.role], update, run, step).items():
                    metrics[f"{update.role}/{name}"] = value
            seconds = time.perf_counter() - started
            per_chunk = recipe.seconds_per_chunk(step, clips[0], seconds)
            timing = {} if per_chunk is None else {"seconds_per_chunk": per_chunk}  # not a metric: no resume repeats it
            step += 1
            frames = sum(clip.x.shape[0] * clip.x.shape[1] for clip in clips) * accelerator.num_processes
            current = {name: value for name, value in metrics.items() if not name.startswith("validation/")}
            line.update(step, current | timing, frames, seconds)
            asked = torch.tensor(stop.requested, device=accelerator.device)
            stopping = _mean(accelerator, asked.float()) > 0  # all ranks leave at the same step

            # Once in a while, and always at the end: log, validate, save, draw a sample.
            last = stopping or step == run.steps
            if last or step % run.log_every == 0:
                accelerator.log(metrics | timing, step=step)
            if run.validate and (step == run.steps or _due(step, run.validate_every)):
                found = validate(run, recipe, objective, roles["model"])
                _check_finite(found, run, step)
                accelerator.log(found, step=step)
                metrics |= found
                line.note(f"step {step}/{run.steps}  {listed(found)}")
                best = min(best or (math.inf, step), (found["validation/loss"], step))
            save = last or _due(step, run.save_every) or (best is not None and best[1] == step)
            look = step == run.steps or _due(step, run.sample_every)
            if save or look:
                files = {**checkpoint.tensors_of(roles), **_tensors(objective)}
                if template is not None:
                    try:
                        _keep(
                            run,
                            template,
                            step,
                            files,
                            _state(run, recipe, frozen, objective, best, metrics),
                            save,
                            look,
                        )
                    except Diverged as error:  # young weights may; all that is due was saved before
                        line.note(f"step {step}: no sample, {error}")
                accelerator.wait_for_everyone()
            if stopping:
                line.note(f"stopped at step {step}, saved; the same command continues")
                break
    accelerator.end_training()
    return metrics


def _role(run: Training, accelerator: Accelerator, model: nn.Module, ema: float) -> Role:
    wrapped, *optimizers = accelerator.prepare(model, *run.optimizer.build(model))
    return Role(wrapped, optimizers, Ema(model, ema) if ema else None)


def _objective(run: Training, recipe: Recipe, accelerator: Accelerator, roles: dict[str, Role]) -> Objective:
    """The run's objective over the role `model`; adds the other roles that it trains."""

    def add(name: str, model: nn.Module) -> nn.Module:
        roles[name] = _role(run, accelerator, model, 0)
        return roles[name].model

    return recipe.build_objective(roles["model"].model, add)


def _batches(run: Training, recipe: Recipe, accelerator: Accelerator, step: int) -> Iterator[list[Clip]]:
    """This process's micro-batches of every step from `step` on, on its device."""
    for clips in recipe.batches.batches(step, accelerator.process_index, accelerator.num_processes, run.micro):
        yield [clip.to(accelerator.device) for clip in clips]


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def apply(accelerator: Accelerator, role: Role, update: Update, run: Training, step: int) -> dict[str, float]:
    """Backpropagate an update's losses one after another, synchronise on the last, and step its role's optimizers.

    step: the update leads from this step to the next one. A loss that is not finite is a UserError before any weight
    has changed. An update without losses only reports its metrics.
    """
    if not update.count:
        return {name: _mean(accelerator, value) for name, value in update.metrics.items()}
    rate = run.optimizer.lr * run.schedule(step, run.steps)
    total = torch.zeros((), device=accelerator.device)
    losses = iter(update.losses)
    for i in range(update.count):
        last = i + 1 == update.count
        with nullcontext() if last else accelerator.no_sync(role.model):
            part = next(losses)
            accelerator.backward(part)
        total += part.detach()
    norm = float(torch.as_tensor(accelerator.clip_grad_norm_(role.model.parameters(), run.clip_grad)))
    loss = _mean(accelerator, total)
    _check_finite({"loss": loss, "gradient norm": norm}, run, step)
    for optimizer in role.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if role.ema is not None:
        role.ema.update()
    others = {name: _mean(accelerator, value) for name, value in update.metrics.items()}
    _check_finite(others, run, step)
    return {"loss": loss, "grad_norm": norm, "learning_rate": rate, **others}


def _check_finite(found: dict[str, float], run: Training, step: int) -> None:
    """A training that has diverged ends here, before a checkpoint is written of it."""
    for name, value in found.items():
        if not math.isfinite(value):
            raise UserError(
                f"the {name} is {value} at step {step}: lower the learning rate (now {run.optimizer.lr}), or clip_grad "
                f"(now {run.clip_grad}) in another out folder; {checkpoint.last(run.out)}"
            )


def _mean(accelerator: Accelerator, value: Tensor) -> float:
    """Over the processes."""
    total: Any = accelerator.reduce(value, "mean")
    return float(total)


def validate(run: Training, recipe: Recipe, objective: Objective, role: Role) -> dict[str, float]:
    """Mean of the objective's held-out losses, with the averaged weights where there are any."""
    values: dict[str, list[float]] = {}
    with role.ema.applied() if role.ema else nullcontext():
        device = next(role.model.parameters()).device
        for clip in recipe.batches.validation_batches(run.validate):
            for name, value in objective.validate(clip.to(device)).items():
                values.setdefault(f"validation/{name}", []).append(float(value))
    return {name: sum(v) / len(v) for name, v in values.items()}


def _accelerator(run: Training) -> Accelerator:
    folders = ProjectConfiguration(project_dir=str(run.out), logging_dir=str(run.out / "tensorboard"))
    precision = {"fp32": "no", "bf16": "bf16"}[run.precision]
    cpu = not (torch.cuda.is_available() or torch.backends.mps.is_available())
    return Accelerator(cpu=cpu, mixed_precision=precision, log_with="tensorboard", project_config=folders)


@contextmanager
def _advice(run: Training, recipe: Recipe) -> Iterator[None]:
    """Turn what a user can do something about into one line: memory that runs out, a full disk.

    Where an objective has given up, the line says where the training can go on from.
    """
    try:
        yield
    except Diverged as error:
        raise UserError(f"{error}; {checkpoint.last(run.out)}") from error
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        first = str(error).split("\n")[0]
        advice = f"{recipe.saves_memory}raise micro (now {run.micro}) in another out folder"
        raise UserError(f"out of memory: {advice}; {checkpoint.last(run.out)} ({first})") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(f"{run.out}: {error.strerror}; {checkpoint.last(run.out)}") from error


def _keep(
    run: Training,
    template: Template,
    step: int,
    files: dict[str, dict[str, Tensor]],
    state: dict[str, Any],
    save: bool,
    look: bool,
) -> None:
    """Write what is due at a step: the model so far with its checkpoint, a sample."""
    checkpoint.check_finite(run.out, step, files)
    average = {name: value for name, value in files.get("model.ema", {}).items() if name != "updates"}
    card = {"step": step, "seed": run.seed, "weights": "averaged" if average else "last", "metrics": state["metrics"]}
    made = template.fill({**files["model"], **average}, card)
    if save:  # the model first: once the checkpoint of the last step is there, so is what the run was for
        try:
            made.save(run.out / "model")
        except UserError as error:
            raise UserError(f"{error}; {checkpoint.last(run.out)}") from error
        newest = [int(folder.name.removeprefix("step_")) for folder in checkpoint.steps(run.out)[-1:]]
        checkpoint.save(run.out, step, files, state, [*newest, *([state["best"][1]] if state["best"] else [])])
    if look:
        template.look(made, run.out / "samples" / f"step_{step:08d}.mp4")


def _state(
    run: Training,
    recipe: Recipe,
    frozen: str | None,
    objective: Objective,
    best: Best | None,
    metrics: dict[str, float],
) -> dict[str, Any]:
    """What a checkpoint holds besides tensors: which run made it, where it stands."""
    values = {name: value for name, value in objective.state_dict().items() if not isinstance(value, Tensor)}
    return {"run": identity(run, recipe, frozen), "objective": values, "best": best, "metrics": metrics}


def _tensors(objective: Objective) -> dict[str, dict[str, Tensor]]:
    """The file of the objective's tensors, if it has any."""
    tensors = {name: value for name, value in objective.state_dict().items() if isinstance(value, Tensor)}
    return {checkpoint.OBJECTIVE: tensors} if tensors else {}


def _resume(
    run: Training, recipe: Recipe, frozen: str | None, roles: dict[str, Role], objective: Objective
) -> tuple[int, Best | None, dict[str, float]]:
    """The step to go on from, the best validation loss so far, and the last metrics."""
    found = checkpoint.steps(run.out)
    if not found:
        return 0, None, {}
    folder, state = found[-1], checkpoint.read_state(found[-1])
    check_identity(state["run"], run, recipe, frozen, str(folder / "state.json"), state["format"])
    checkpoint.restore(folder, roles)
    objective.load_state_dict(checkpoint.read_objective(folder, state, objective.state_dict()))
    return state["step"], tuple(state["best"]) if state["best"] else None, state["metrics"]
