"""The estimate of objectives that roll out, against what PyTorch counts and allocates in their real steps."""

import json
from dataclasses import replace

import pytest
import torch
from tiny import SIZES, small_clip, small_dit, traced
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from worldmodel.differentiable import Gradients
from worldmodel.errors import UserError
from worldmodel.estimate import Workload, estimate, print_estimate
from worldmodel.frechet.distance import Frechet
from worldmodel.frechet.population import Average, Queue
from worldmodel.kernels import backend
from worldmodel.memory import FullConfig, LactConfig, SlowFastConfig, WindowConfig
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.fast_layer import FastConfig
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.frechet_forcing import FrechetForcing
from worldmodel.objectives.hero import Hero
from worldmodel.objectives.own_rollouts import OwnRollouts
from worldmodel.objectives.pushforward import Pushforward, PushforwardObjective
from worldmodel.objectives.self_forcing import SelfForcing, Teacher
from worldmodel.rollout_footprint import EIGENVALUES
from worldmodel.sampler import Euler, Pipelined


@pytest.fixture(autouse=True)
def general_way():
    """What is estimated is the transformer on any device; passes without gradients on a CPU take less."""
    with backend.using("sdpa"):
        yield


CFG = DiTConfig(**SIZES)
WINDOW = StreamConfig(memory=WindowConfig(ring=4), sampler=Euler(steps=3, guidance=1.5))
FULL = StreamConfig(memory=FullConfig(), sampler=Euler(steps=2))
SLOW_FAST = StreamConfig(memory=SlowFastConfig(sink=1, slow=2, fast=3, every=2), sampler=Euler(steps=2))
LACT = StreamConfig(memory=LactConfig(ring=2), sampler=Euler(steps=2))
FAST = FastConfig(groups=2, expand=1.5, momentum=True)  # of a model with a lact memory
MEAN = Frechet(mode="mean")  # a distance whose products are nothing


def rollouts(chunks=3, **gradients):
    return OwnRollouts(prefix=2, lengths=((0, 1), (5, chunks)), gradients=Gradients(**gradients))


def forcing(**changes):
    fields = {"rollouts": rollouts(), "frechet": MEAN, "population": Queue(capacity=16), "reference": 4, "last": 2}
    return FrechetForcing(**fields | {"encoders": ("autoencoder",)} | changes)


CASES = {
    "frechet": (forcing(), WINDOW),
    "frechet with full memory": (forcing(encoders=("autoencoder", "autoencoder_hidden"), stride=2), FULL),
    "frechet without reality": (forcing(reality=0.0), WINDOW),
    "frechet without anchor": (forcing(anchor=0.0), WINDOW),
    "anchor alone": (forcing(context=0.0, reality=0.0), FULL),
    "frechet by replay": (forcing(rollouts=rollouts(memory="replay"), reality=0.0), FULL),
    "frechet through two calls": (forcing(rollouts=rollouts(policy="k_steps", k=2), reality=0.0), WINDOW),
    "self forcing": (SelfForcing(teacher="", rollouts=rollouts(), ratio=2), FULL),
    "self forcing, guided": (SelfForcing(teacher="", rollouts=rollouts(), ratio=1, guidance=2.0), WINDOW),
    "hero": (Hero(prefix=2), FULL),
    "hero in a window": (Hero(), WINDOW),
    "pushforward": (Pushforward(prefix=2), FULL),
    "slow-fast by replay": (forcing(rollouts=rollouts(memory="replay"), reality=0.0), SLOW_FAST),
    "hero with slow-fast": (Hero(prefix=2), SLOW_FAST),
    "lact by replay": (forcing(rollouts=rollouts(memory="replay"), reality=0.0), LACT),
    "self forcing with lact": (SelfForcing(teacher="", rollouts=rollouts(), ratio=1), LACT),
    "hero with lact": (Hero(prefix=2), LACT),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("footprint") / "tokenizer"
    torch.manual_seed(0)
    AutoencoderConfig(channels=2, widths=(4, 8), blocks=(1, 0)).build().save(folder)
    return folder


def work_of(name, tokenizer, **changes):
    objective, stream = CASES[name]
    cfg = replace(CFG, fast=FAST if isinstance(stream.memory, LactConfig) else None)
    return Workload(model=cfg, batch=2, frames=16, objective=objective, stream=stream, tokenizer=tokenizer, **changes)


def real(work):
    """A step of the real objective, its rollouts of full length, as a function; and how often it is taken."""
    fast, objective = work.model.fast, work.objective
    model = small_dit(fast=fast)
    clips = [small_clip(model, rows=work.batch, frames=work.frames, seed=seed) for seed in range(2)]
    if isinstance(objective, FrechetForcing):
        built = objective.build(model, work.model, 3, work.stream, work.tokenizer)
        built.begin(iter([[clips[seed % 2]] for seed in range(40)]))
    elif isinstance(objective, SelfForcing):
        teacher = Teacher(small_dit(2, fast=fast).requires_grad_(False), work.stream.memory)
        built = objective.build(model, small_dit(1, fast=fast), teacher, 3, work.stream)
    else:
        built = objective.build(model, work.stream, 3)
    if isinstance(objective, FrechetForcing | SelfForcing):
        built.step = 6

    def step():
        for update in built.updates(clips[:1]):
            for loss in update.losses:
                loss.backward()

    return built, step


def steps_of(objective):
    """Steps over which it does all that it does."""
    return objective.ratio if isinstance(objective, SelfForcing) else 1


@pytest.mark.parametrize("name", [name for name in CASES if name != "pushforward"])
def test_operations_are_those_that_pytorch_counts(name, tokenizer):
    """The math backend, whose backward pass of attention costs 2 forward ones, not 2.5."""
    work = work_of(name, tokenizer)
    _, step = real(work)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        for _ in range(steps_of(work.objective)):
            step()
    expected = counted.get_total_flops() / steps_of(work.objective)
    assert estimate(work).operations.total == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("kind", ["frechet", "replay", "self forcing"])
def test_a_lead_counts_as_the_mean_of_its_draws(kind, tokenizer):
    cfg = replace(rollouts(memory="replay" if kind == "replay" else "none"), lead=2)
    objective = (
        SelfForcing(teacher="", rollouts=cfg, ratio=1) if kind == "self forcing" else forcing(rollouts=cfg, reality=0.0)
    )
    work = replace(work_of("frechet with full memory", tokenizer), objective=objective, frames=20)
    built, step = real(work)
    found = []
    for lead in range(3):
        built.rollouts._draw = lambda step, what, device, u=(lead + 0.5) / 3: u
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
            step()
        found.append(counted.get_total_flops())
    assert found[2] > found[1] > found[0]
    assert estimate(work).operations.total == pytest.approx(sum(found) / 3, rel=0.04)
    assert estimate(work).chunks == 4


def test_pushforward_is_the_mean_over_its_lengths(tokenizer):
    work = work_of("pushforward", tokenizer)
    built, _ = real(work)
    assert isinstance(built, PushforwardObjective)
    found = []
    for chunks in range(1, 7):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
            built.loss(small_clip(small_dit(), rows=2, frames=16), chunks).backward()
        found.append(counted.get_total_flops())
    assert estimate(work).operations.total == pytest.approx(sum(found) / 6, rel=0.04)
    assert estimate(work).chunks == 3.5


@pytest.mark.parametrize("name", [name for name in CASES if name != "pushforward"])
def test_activations_are_what_is_allocated(name, tokenizer):
    work = work_of(name, tokenizer)
    _, step = real(work)
    for _ in range(steps_of(work.objective)):
        step()  # gradients are there
    peak = max(traced(step)[2] for _ in range(steps_of(work.objective)))
    assert estimate(work).memory.activations == pytest.approx(peak, rel=0.25)


def test_frozen_networks_and_populations(tokenizer):
    """By hand: D = 5 C features of the autoencoder, 6 C of the latent statistics."""
    work = work_of("frechet", tokenizer)
    memory = estimate(work).memory
    assert memory.host == sum(4 * 16 * d + 8 * d * d for d in (10, 12))
    wide = replace(work, objective=forcing(frechet=Frechet(), population=Average()))
    assert estimate(wide).memory.host == sum(24 * d * d for d in (10, 12))
    gram = {d: 2 * 16 * d * d + 4 * d**3 for d in (10, 12)}
    more = estimate(replace(work, objective=forcing(frechet=Frechet()))).operations.total
    distances = sum(2 * (3 * p + EIGENVALUES * d**3) for d, p in gram.items())
    assert more - estimate(work).operations.total == pytest.approx(distances)


def test_prints_what_a_rollout_costs(tokenizer, tmp_path, capsys):
    work = work_of("self forcing", tokenizer)
    assert print_estimate(work, tflops=1.0, json=tmp_path / "e.json") == 0
    printed = capsys.readouterr().out
    assert "chunks of a rollout" in printed and "time per step and chunk" in printed and "critic" in printed
    values = {name: m["value"] for name, m in json.loads((tmp_path / "e.json").read_text())["metrics"].items()}
    found = estimate(work)
    assert values["step_time_per_chunk"] == found.operations.total / 1e12 / 3 and "tokens_per_step" not in values
    weights = sum(4 * p.numel() for p in small_dit().parameters())
    memory = found.memory
    assert (memory.weights, memory.gradients, memory.optimizer) == (2 * weights, 2 * weights, 4 * weights)
    assert (memory.frozen, memory.ema) == (weights, weights) and found.parameters == weights // 2


def test_what_cannot_be_estimated_is_told(tokenizer):
    with pytest.raises(UserError, match=r"FrechetForcing needs clips of 16 latent frames from step 5 on.* give 14"):
        replace(work_of("frechet", tokenizer), frames=14)
    with pytest.raises(UserError, match="needs Euler, Heun or FewStep, not Pipelined"):
        estimate(replace(work_of("hero", tokenizer), stream=replace(FULL, sampler=Pipelined(chunks=2, steps=2))))
    with pytest.raises(UserError, match="needs the tokenizer's folder"):
        estimate(replace(work_of("frechet", tokenizer), tokenizer=None))
