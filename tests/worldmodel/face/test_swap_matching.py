"""Joint Rec-ID against closed forms and finite differences; training a swap along the way that a stream goes."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_swaps import CFG, PIXELS, SIZE, STREAM, small_clip, small_swap
from torch import Tensor
from torch.nn import functional as F

from worldmodel import flow, noise
from worldmodel.errors import UserError
from worldmodel.face.networks.embedder import EmbedderConfig
from worldmodel.face.region_codec import RegionCodec
from worldmodel.face.swap_model import begin_stream
from worldmodel.objectives.joint_rec_id import JointRecId, Likeness, Variant, gate
from worldmodel.objectives.swap_matching import (
    LEVEL,
    NOISE,
    OWN,
    ShortContext,
    SwapMatching,
    SwapMatchingObjective,
    seen_psnr,
)
from worldmodel.rollout import replay, rollout

VARIANTS: tuple[Variant, ...] = ("noise_gated", "additive", "reweighted")
NOWHERE = Path("none")


def recogniser() -> torch.nn.Module:
    torch.manual_seed(7)
    return EmbedderConfig(width=8, dim=6).build().eval().requires_grad_(False)


def objective(variant: Variant | None = None, rollouts: ShortContext | None = None) -> SwapMatchingObjective:
    identity = None if variant is None else JointRecId(embedder=NOWHERE, variant=variant, weight=0.5)
    cfg = SwapMatching(identity=identity, rollouts=rollouts)
    swap = small_swap()
    embedder = None if variant is None else recogniser()
    return cfg.build(swap.dit, swap.codec, swap.stream, 11, embedder)


# -- the loss ----------------------------------------------------------------------------------------------------------


def test_the_gate_is_the_data_s_share_of_the_power() -> None:
    t = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    torch.testing.assert_close(gate(t, 1.0), torch.tensor([1, 0.9, 0.5, 0.1, 0], dtype=torch.float64))
    torch.testing.assert_close(gate(t, 2.0), torch.tensor([1, 0.81, 0.25, 0.01, 0], dtype=torch.float64))
    assert (gate(torch.linspace(0, 1, 99), 1.5).diff() < 0).all()


def test_variants_in_closed_form() -> None:
    error, cosine, t = torch.tensor([[2.0, 3.0]]), torch.tensor([[0.6, -0.5]]), torch.tensor([[0.25, 0.75]])
    found = {v: JointRecId(embedder=NOWHERE, variant=v, weight=0.5, delta=0.4)(error, cosine, t) for v in VARIANTS}
    torch.testing.assert_close(found["additive"], torch.tensor([[2 + 0.5 * 0.4, 3 + 0.5 * 1.5]]))
    torch.testing.assert_close(found["noise_gated"], torch.tensor([[2 + 0.5 * 0.9 * 0.4, 3 + 0.5 * 0.1 * 1.5]]))
    torch.testing.assert_close(found["reweighted"], torch.tensor([[2 / 1.0, 3 / 0.4]]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_through_decoder_and_recogniser_are_those_of_finite_differences(variant: Variant) -> None:
    """By the predicted velocity, in fp64. `reweighted` differentiates with its weights held as they are."""
    likeness, rng = Likeness(recogniser().double()), torch.Generator().manual_seed(1)
    x, eps, pictures = (torch.rand(1, 2, 3, SIZE, SIZE, generator=rng, dtype=torch.float64) - 0.5 for _ in range(3))
    t = torch.tensor([[0.2, 0.6]], dtype=torch.float64)
    x_t, true = flow.interpolate(x, eps, t), flow.velocity(x, eps)
    guess = (true + 0.1 * torch.rand(x.shape, generator=rng, dtype=torch.float64)).requires_grad_()
    who, cfg = likeness.references(pictures), JointRecId(embedder=NOWHERE, variant=variant, weight=0.5)
    still = likeness(PIXELS.decode(flow.clean(x_t, guess, t)), who).detach()

    def loss(v: Tensor) -> Tensor:
        error = (v - true).square().flatten(2).mean(-1)
        if cfg.differentiates:
            return cfg(error, likeness(PIXELS.decode(flow.clean(x_t, v, t)), who), t).mean()
        return cfg(error, still, t).mean()

    (found,) = torch.autograd.grad(loss(guess), guess)
    directions = torch.randn(6, *x.shape, generator=rng, dtype=torch.float64)
    for along in directions:
        step = 1e-5
        expected = (loss(guess + step * along) - loss(guess - step * along)) / (2 * step)
        assert math.isclose(float((found * along).sum()), float(expected.detach()), rel_tol=1e-6, abs_tol=1e-9)
    plain = torch.autograd.grad((guess - true).square().flatten(2).mean(-1).mean(), guess)[0]
    if variant == "reweighted":  # only the weight of each frame
        torch.testing.assert_close(found, plain / (still.clamp_min(0) + cfg.delta)[:, :, None, None, None])
    else:
        assert (found - plain).abs().max() > 1e-3 * plain.abs().max()


def test_a_person_is_the_direction_of_all_pictures() -> None:
    model, likeness = recogniser(), Likeness(recogniser())
    pictures = torch.rand(2, 3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(2)) * 2 - 1
    who = likeness.references(pictures)
    torch.testing.assert_close(who, F.normalize(model(pictures.flatten(0, 1)).unflatten(0, (2, 3)).mean(1), dim=-1))
    cosines = likeness(pictures, who)
    torch.testing.assert_close(cosines[1, 2], model(pictures[1, 2:])[0] @ who[1])


# -- training ----------------------------------------------------------------------------------------------------------


def drawn(clip, number: int) -> tuple[Tensor, Tensor]:
    """Noise and time of a chunk, as keyed."""
    seed = noise.row_seed(11, clip.index)
    frames = 2 * number + torch.arange(2).expand(clip.batch, -1)
    t = torch.sigmoid(noise.normal(seed, frames[:, :1], LEVEL, ())).expand(-1, 2)
    return noise.normal(seed, frames, NOISE, (3, SIZE, SIZE)), t


@pytest.mark.parametrize("variant", [None, *VARIANTS])
def test_the_loss_of_a_new_model_is_known(variant: Variant | None) -> None:
    """A new model predicts velocity 0: its error is the mean square of the velocity, its faces are x_t."""
    torch.manual_seed(0)
    made, clip, embedder = objective(variant), small_clip(), recogniser()
    made = made.cfg.build(CFG.build(), made.codec, made.stream, 11, None if variant is None else embedder)
    expected, errors, cosines = [], [], []
    who = Likeness(embedder).references(clip.control.reference)
    for number in range(4):
        x = clip.x[:, 2 * number : 2 * number + 2]
        eps, t = drawn(clip, number)
        error = (eps - x).square().mean((2, 3, 4))
        seen = ((1 - t)[..., None, None, None] * x + t[..., None, None, None] * eps).clamp(-1, 1)
        cosine = F.cosine_similarity(embedder(seen.flatten(0, 1)).unflatten(0, (2, 2)), who[:, None], dim=-1)
        errors.append(error)
        cosines.append(cosine)
        expected.append(error if made.cfg.identity is None else made.cfg.identity(error, cosine, t))
    loss, parts = made.loss(clip)
    torch.testing.assert_close(loss, torch.cat(expected, 1).mean(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parts["reconstruction"], torch.cat(errors, 1).mean(), rtol=1e-5, atol=1e-6)
    if variant is not None:
        torch.testing.assert_close(parts["cosine"], torch.cat(cosines, 1).mean(), rtol=1e-5, atol=1e-6)


def test_frames_without_a_face_carry_no_loss() -> None:
    made, clip = objective("noise_gated"), small_clip()
    some = torch.ones(2, 8, dtype=torch.bool).index_fill(1, torch.tensor([0, 1]), False)
    hidden = replace(clip, control=replace(clip.control, target=replace(clip.control.target, active=some)))
    first, second = (made._along(one, clip.x, 1, 11)[0] for one in (hidden, clip))
    torch.testing.assert_close(made.loss(hidden)[0], first)  # all but the first chunk's
    condition = made.codec.condition(clip.control.target).condition[:, :2, 4:]
    assert condition.abs().max() > 0 and first != second  # they are told from others by empty maps
    none = replace(hidden.control.target.frames(0, 2), active=torch.zeros(2, 2, dtype=torch.bool))
    nobody = replace(clip.frames(0, 2), control=replace(clip.control.frames(0, 2), target=none))
    assert made.loss(nobody)[0] == 0


def test_the_replayed_history_is_that_of_the_rollout() -> None:
    """After own chunks, the loss is what the deployed stream's memory gives, to which gradients were only added."""
    made, clip = objective(rollouts=ShortContext(chunks=(3, 3))), small_clip()
    loss, _ = made.loss(clip)
    swap = small_swap()
    with torch.no_grad():
        seed = noise.row_seed(11 ^ OWN, clip.index)
        begun = begin_stream(swap.dit, STREAM.memory, seed, swap.codec.reference(clip.control.reference, 2))
        control = swap.codec.condition(clip.control.target)
        for _, state in rollout(swap.dit, replay(control.frames(0, 6), 2), STREAM.sampler, begun, 0.1):
            begun = state
        eps, t = drawn(clip, 3)
        x = clip.x[:, 6:]
        found = swap.dit.velocity(flow.interpolate(x, eps, t), t, swap.dit.prepare(control.frames(6, 8), begun))
    torch.testing.assert_close(loss, (found - flow.velocity(x, eps)).square().mean(), rtol=1e-5, atol=1e-6)
    teacher = objective()._along(clip, clip.x, 3, 11)[0]
    assert abs(float((loss - teacher).detach())) > 1e-3  # a real history is another one


def test_several_last_chunks_see_own_ones_between_them() -> None:
    made, clip = objective(rollouts=ShortContext(chunks=(2, 2), last=2)), small_clip()
    own = made.own(clip.frames(0, 6))
    assert own.shape == (2, 6, 3, SIZE, SIZE)
    torch.testing.assert_close(made.loss(clip)[0], made._along(clip, own, 2, 11)[0])


def test_every_length_of_rollout_is_drawn_and_a_resume_draws_the_same() -> None:
    made = objective(rollouts=ShortContext(chunks=(2, 4)))
    lengths = []
    for step in range(40):
        made.load_state_dict({"step": step})
        lengths.append(made._made_first())
    assert sorted(set(lengths)) == [2, 3, 4] and min(lengths.count(n) for n in (2, 3, 4)) >= 6
    update = next(made.updates([small_clip(frames=10)]))
    assert update.count == 1 and made.state_dict() == {"step": 39}


@pytest.mark.parametrize("rollouts", [None, ShortContext(chunks=(1, 1))], ids=["teacher", "own"])
def test_every_parameter_learns_through_the_reference_and_the_memory(rollouts: ShortContext | None) -> None:
    made, clip = objective("additive", rollouts), small_clip(frames=4)
    made.loss(clip)[0].backward()
    for name, p in made.roles["model"].named_parameters():
        assert p.grad is not None and torch.isfinite(p.grad).all() and p.grad.abs().max() > 0, name
    pictures = clip.control.reference.clone().requires_grad_()
    reference = made.codec.reference(pictures, 2)
    reference = replace(reference, x=reference.x.detach().requires_grad_())
    state = begin_stream(made.model, STREAM.memory, torch.arange(2), reference)
    control = made.codec.condition(clip.control.target.frames(0, 2))
    v = made.model.velocity(clip.x[:, :2], torch.full((2, 2), 0.5), made.model.prepare(control, state))
    (pull,) = torch.autograd.grad(v.square().mean(), reference.x)
    assert pull.abs().flatten(1).max(1).values.min() > 1e-6  # of both rows


def test_rows_and_micro_batches_are_alone() -> None:
    made, clip = objective("noise_gated"), small_clip()
    whole = made.loss(clip)[0]
    parts = [made.loss(clip.select(torch.tensor([row])))[0] for row in range(2)]
    torch.testing.assert_close(whole, torch.stack(parts).mean(), rtol=1e-5, atol=1e-6)
    update = next(made.updates([clip.select(torch.tensor([row])) for row in range(2)]))
    torch.testing.assert_close(sum(update.losses), whole, rtol=1e-5, atol=1e-6)
    assert set(update.metrics) == {"reconstruction", "cosine"}


def test_validation_is_the_same_for_every_variant_but_for_the_likeness() -> None:
    clip = small_clip()
    plain, joint = (objective(v).validate(clip) for v in (None, "reweighted"))
    assert set(joint) - set(plain) == {"cosine"} and joint["loss"] == plain["loss"] and joint["psnr"] == plain["psnr"]
    made, mask = objective().own(clip).clamp(-1, 1), clip.control.target.mask
    error = ((made - clip.x).square() * mask).sum() / (3 * mask.sum())
    torch.testing.assert_close(plain["psnr"], 10 * torch.log10(4 / error))
    assert seen_psnr(clip.x, clip.x + 0.2, mask * 0 + 0.5).item() == pytest.approx(20, abs=1e-3)


def test_what_cannot_be_trained_is_named() -> None:
    with pytest.raises(UserError, match="clips of 3 frames must be chunks of 2, 2 frames or more"):
        objective().loss(small_clip(frames=3))
    with pytest.raises(UserError, match="clips of 6 frames must be chunks of 2, 8 frames or more"):
        objective(rollouts=ShortContext(chunks=(2, 3))).loss(small_clip(frames=6))
    with pytest.raises(UserError, match=r"chunks \(3, 2\) must be two numbers that rise"):
        ShortContext(chunks=(3, 2))
    with pytest.raises(UserError, match="weight must be in"):
        JointRecId(embedder=NOWHERE, weight=-1)
    with pytest.raises(UserError, match="delta must be in"):
        JointRecId(embedder=NOWHERE, delta=0)
    with pytest.raises(UserError, match="the checkpoint holds"):
        objective().load_state_dict({})
    codec = RegionCodec(PIXELS, SIZE, 1)
    with pytest.raises(UserError, match=r"model.condition is 4, regions of 8 pixels through this tokenizer need 7"):
        codec.check(replace(CFG, condition=4))


def test_a_few_steps_learn_one_clip() -> None:
    made, clip = objective("noise_gated"), small_clip(rows=1, frames=4)
    torch.manual_seed(0)
    made = made.cfg.build(replace(CFG, dim=64, hidden=96).build(), made.codec, made.stream, 11, recogniser())
    optimizer = torch.optim.AdamW(made.roles["model"].parameters(), lr=3e-3)
    first = float(made.loss(clip)[0].detach())
    for _ in range(15):
        optimizer.zero_grad()
        made.loss(clip)[0].backward()
        optimizer.step()
    assert float(made.loss(clip)[0].detach()) < 0.8 * first
