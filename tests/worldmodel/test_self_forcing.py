"""Self Forcing: the pull on the student, the critic's lesson, the order of updates, and what is refused."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import close, small_clip, small_dit, tiny_run

from worldmodel.differentiable import Gradients
from worldmodel.errors import UserError
from worldmodel.memory import FullConfig, WindowConfig
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.own_rollouts import OwnRollouts, Rollouts, check_lengths
from worldmodel.objectives.self_forcing import SelfForcing, SelfForcingObjective, Teacher
from worldmodel.sampler import Euler, Pipelined
from worldmodel.train import train

STREAM = StreamConfig(memory=WindowConfig(ring=4), sampler=Euler(steps=3))


def objective(gradients: Gradients | None = None, memory=STREAM.memory, **changes) -> SelfForcingObjective:
    """memory: the teacher's."""
    cfg = SelfForcing(
        teacher="", rollouts=OwnRollouts(lengths=((0, 2), (10, 3)), gradients=gradients or Gradients()), **changes
    )
    student, critic, teacher = small_dit(0), small_dit(1), Teacher(small_dit(2).requires_grad_(False), memory)
    return SelfForcingObjective(cfg, student, critic, teacher, cfg.rollouts.build(student, STREAM, 7), 7)


def test_no_pull_where_critic_and_teacher_agree():
    o = objective()
    o.roles["critic"].load_state_dict(o.teacher.model.state_dict())
    assert not o.difference(o.rollouts.first(small_clip(o.teacher.model), 0, 2)).any()


@pytest.mark.parametrize("memory", ["none", "replay"])
def test_the_student_gets_the_gradient_of_the_loss(memory):
    """0.5 |x - (x - g)|^2 with a constant target: written out, over two micro-batches."""
    o = objective(Gradients(policy="exit_step", memory=memory), ratio=1)
    student = o.roles["model"]
    clips = [small_clip(o.teacher.model, seed=s) for s in (0, 1)]
    critic, model = o.updates(clips)
    assert (critic.role, critic.count, model.role, model.count) == (
        "critic",
        2,
        "model",
        2 if memory == "replay" else 4,
    )
    for loss in model.losses:
        loss.backward()
    found = [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in student.parameters()]
    student.zero_grad()
    for clip in clips:
        made = o.rollouts.first(clip, 0, 2)
        g = o.difference(made)
        flat = torch.zeros_like(g)
        flat.requires_grad_()
        (0.5 * (flat - (-g)).square().mean() / len(clips)).backward()  # dL/dx where x = 0 and the target is -g
        for loss in o.rollouts.again(made, list(flat.grad.split(2, 1))):
            loss.backward()
    wanted = [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in student.parameters()]
    scale = max(float(w.abs().max()) for w in wanted)
    assert scale > 1e-4
    for a, b in zip(found, wanted, strict=True):
        assert float((a - b).abs().max()) <= 1e-5 * scale


def test_guidance_sharpens_the_teacher_only():
    plain, sharp = objective(), objective(guidance=3.0)
    made = plain.rollouts.first(small_clip(plain.teacher.model), 0, 2)
    assert not torch.allclose(plain.difference(made), sharp.difference(made), atol=1e-3)
    made = replace(made, control=made.control.drop(torch.tensor([True, True])))  # nothing to sharpen
    close(sharp.difference(made), plain.difference(made), 1e-5)


@pytest.mark.parametrize(("memory", "reaches"), [(FullConfig(), True), (WindowConfig(ring=2), False)], ids=str)
def test_scores_see_the_context_that_the_teacher_remembers(memory, reaches):
    """Another first chunk, 3 chunks before the matched one: only a long memory makes a difference."""
    cfg = replace(objective().cfg, rollouts=OwnRollouts(lead=3, lengths=((0, 1),)))
    o = objective(memory=memory)
    rollouts = cfg.rollouts.build(o.roles["model"], STREAM, 7)
    clip = small_clip(o.teacher.model, frames=10)
    made = next(m for m in (rollouts.first(clip, step, 1) for step in range(20)) if m.context.x.shape[1] == 8)
    x = torch.cat((-made.context.x[:, :2], made.context.x[:, 2:]), 1)
    other = replace(made, context=replace(made.context, x=x))
    assert (float((o.difference(made) - o.difference(other)).abs().max()) > 1e-4) == reaches


def test_order_of_updates_and_resume():
    o = objective(ratio=3)
    seen = [[u.role for u in o.updates([small_clip(o.teacher.model)])] for _ in range(6)]
    assert seen == [["critic"], ["critic"], ["critic", "model"]] * 2
    other = objective(ratio=3)
    other.load_state_dict(o.state_dict())
    assert other.step == 6
    for _ in range(4):
        list(o.updates([small_clip(o.teacher.model)]))
    clip = small_clip(o.teacher.model)
    assert o.rollouts.cfg.chunks(o.step) == 3 and len(o.rollouts.first(clip, o.step, 3).takes) == 3


def test_every_process_draws_the_same_call():
    o = objective(Gradients(policy="random_step"))
    draws = [o.rollouts.first(small_clip(o.teacher.model, seed=s), step, 2).u for step in range(5) for s in (0, 1)]
    assert draws[0::2] == draws[1::2] and len(set(draws)) == 5


def test_bad_configurations():
    with pytest.raises(UserError, match=r"ratio 0 must be at least 1"):
        SelfForcing(teacher="", ratio=0)
    with pytest.raises(UserError, match=r"levels \(0.5, 0.2\) rise in \(0, 1\)"):
        SelfForcing(teacher="", levels=(0.5, 0.2))
    with pytest.raises(UserError, match=r"lengths \(\(5, 2\),\) must begin at step 0"):
        OwnRollouts(lengths=((5, 2),))
    with pytest.raises(UserError, match="at least one chunk"):
        OwnRollouts(lengths=((0, 0),))
    model = small_dit()
    with pytest.raises(UserError, match="needs Euler, Heun or FewStep, not Pipelined"):
        Rollouts(OwnRollouts(), model, replace(STREAM, sampler=Pipelined()), 0)
    with pytest.raises(UserError, match="memory 'full' needs all of them"):
        Rollouts(OwnRollouts(gradients=Gradients(memory="full")), model, STREAM, 0)
    with pytest.raises(UserError, match="1 chunks of prefix and 6 generated ones of 2 frames need clips of 14 frames"):
        OwnRollouts().build(model, STREAM, 0).first(small_clip(model), 0, 6)
    with pytest.raises(UserError, match=r"guidance must be in \[0, 1000\], not nan"):
        SelfForcing(teacher="", guidance=float("nan"))
    growing = SelfForcing(teacher="", rollouts=OwnRollouts(lengths=((0, 1), (5, 9))))
    check_lengths(growing, 2, 4, (), (0, 5), 5)
    with pytest.raises(UserError, match=r"SelfForcing needs clips of 20 latent frames from step 5 on, .* give 4"):
        check_lengths(growing, 2, 4, (), (0, 5), 6)
    with pytest.raises(UserError, match=r"needs clips of 4 latent frames from step 0 on, .* give 2"):
        check_lengths(growing, 2, 20, ((3, 2),), (0, 5), 6)
    whole = OwnRollouts().build(model, replace(STREAM, memory=FullConfig()), 0)
    assert whole.first(small_clip(model, frames=14), 0, 6).x.shape[1] == 12


def test_a_teacher_of_another_tokenizer_is_refused(tmp_path):
    """Equal shapes say nothing: the same numbers mean other pictures."""
    taught = tiny_run(tmp_path / "run", steps=1, validate=0)
    train(taught)
    shape = taught.model
    forcing = SelfForcing(teacher=str(tmp_path / "run"))
    assert forcing.frozen(shape, tmp_path / "tokenizer").memory == taught.stream.memory
    weights = tmp_path / "tokenizer" / "model.safetensors"
    stored = load_file(weights)
    save_file({name: value.bfloat16() for name, value in stored.items()}, weights)  # rounded, as what ships may be
    forcing.frozen(shape, tmp_path / "tokenizer")
    save_file({name: value.roll(1, 0) for name, value in stored.items()}, weights)
    with pytest.raises(UserError, match=r"run: the teacher's tokenizer is not .*tokenizer, which made the run's lat"):
        forcing.frozen(shape, tmp_path / "tokenizer")
    with pytest.raises(UserError, match="no teacher is named"):
        SelfForcing(teacher="").frozen(shape, tmp_path / "tokenizer")
    with pytest.raises(UserError, match=r"run: the teacher's chunk is 2, the run's model.chunk is 3"):
        forcing.frozen(replace(shape, chunk=3), tmp_path / "tokenizer")
