"""Embedders of rendered faces: pairs, the contrastive loss against its definition, folders, a short training."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from worldmodel.chunk import Clip
from worldmodel.datasets.heads.embedder_run import EmbedderRun
from worldmodel.datasets.heads.pairs import HeadPairs, _coprime
from worldmodel.errors import UserError
from worldmodel.face.networks.embedder import SEEN, EmbedderConfig, FaceEmbedder, middle
from worldmodel.objectives.contrastive import Contrastive, split_pairs, verification_accuracy
from worldmodel.run import load_training
from worldmodel.train import train

PAIRS = HeadPairs(size=32, batch=4, people=40, held_out=9)
KINDS = (EmbedderConfig("residual", 8, 16), EmbedderConfig("mixer", 16, 16))


def test_pairs_start_anywhere_and_keep_sides_apart() -> None:
    stream = PAIRS.batches()
    _, second = next(stream), next(stream)[0]
    assert second.x.shape == (4, 2, 3, 32, 32) and second.x.abs().max() <= 1
    parts = [next(PAIRS.batches(1, rank, 2))[0] for rank in range(2)]
    assert torch.equal(torch.cat([part.x for part in parts]), second.x)
    assert not torch.equal(second.x[:, 0], second.x[:, 1])
    assert not torch.equal(next(iter(PAIRS.validation_batches(1))).x, next(PAIRS.batches())[0].x)
    with pytest.raises(UserError, match="grain"):
        replace(PAIRS, grain=2.0)


@pytest.mark.parametrize("count", [3, 4, 9, 40, 512, 4096])
def test_a_walk_meets_everybody_once(count: int) -> None:
    step = _coprime(count)
    assert sorted(n * step % count for n in range(count)) == list(range(count))


def test_the_loss_is_the_cross_entropy_of_which_view_is_the_same() -> None:
    torch.manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(5, 2, 7, dtype=torch.float64), dim=-1)
    objective = Contrastive(temperature=0.3).build(torch.nn.Identity())
    clip = Clip(vectors[..., None, None], None, torch.arange(5))
    objective.roles["model"] = torch.nn.Flatten()
    flat, total = vectors.flatten(0, 1), 0.0
    for a in range(10):
        other = a ^ 1
        scores = torch.stack([flat[a] @ flat[b] / 0.3 for b in range(10) if b != a])
        total += float(torch.logsumexp(scores, 0) - flat[a] @ flat[other] / 0.3)
    assert float(objective.loss(clip)) == pytest.approx(total / 10, rel=1e-12)
    with pytest.raises(UserError, match="two pictures each"):
        objective.loss(Clip(vectors[:, :1, :, None, None], None, torch.arange(5)))


def test_accuracy_of_telling_pairs_apart() -> None:
    same, different = torch.tensor((0.9, 0.8, 0.2)), torch.tensor((0.1, 0.3, 0.0, 0.0))
    assert float(verification_accuracy(same, different)) == pytest.approx((1 + 3 / 4) / 2)  # at 0.2
    assert float(verification_accuracy(same, same - 1)) == 1
    assert float(verification_accuracy(same, same)) == pytest.approx(0.5)
    diagonal, rest = split_pairs(torch.arange(9.0).view(3, 3))
    assert diagonal.tolist() == [0, 4, 8] and rest.tolist() == [1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize("cfg", KINDS)
def test_embeddings_are_unit_vectors_with_gradients_at_any_size(cfg: EmbedderConfig) -> None:
    torch.manual_seed(1)
    model = cfg.build()
    for size in (32, 64, 128):
        regions = torch.rand(2, 3, size, size).requires_grad_()
        assert middle(regions).shape == (2, 3, SEEN, SEEN)
        made = model(regions)
        torch.testing.assert_close(made.norm(dim=-1), torch.ones(2))
        made[:, 0].sum().backward()
        gradient = regions.grad
        assert gradient is not None and gradient[..., : size // 8, :].abs().max() == 0  # beside what is looked at
        assert gradient[..., size // 2, size // 2].abs().max() > 0


@pytest.mark.parametrize("cfg", KINDS)
def test_a_folder_gives_the_same_embeddings(cfg: EmbedderConfig, tmp_path: Path) -> None:
    torch.manual_seed(2)
    made = FaceEmbedder(cfg.build().eval(), {"step": 3})
    made.save(tmp_path / "e")
    again = FaceEmbedder.find(tmp_path / "e")
    regions = torch.rand(2, 4, 3, 32, 32) * 2 - 1
    assert torch.equal(made.embed(regions), again.embed(regions)) and again.embed(regions).shape == (2, 4, 16)
    assert again.card == {"step": 3} and not any(p.requires_grad for p in again.model.parameters())
    (tmp_path / "e" / "config.json").write_text('{"format": 1, "kind": "a cake"}')
    with pytest.raises(UserError, match="not the configuration of a face embedder"):
        FaceEmbedder.find(tmp_path / "e")


@pytest.mark.parametrize("width", [12, 0, 4096])
def test_widths_that_no_embedder_has(width: int) -> None:
    with pytest.raises(UserError, match="width"):
        EmbedderConfig("residual", width)


@pytest.mark.parametrize("cfg", KINDS)
def test_a_few_steps_tell_a_few_people_apart(cfg: EmbedderConfig) -> None:
    torch.manual_seed(3)
    clip = next(replace(PAIRS, batch=6, occluded=0.0).batches())[0]
    objective = Contrastive().build(cfg.build())
    optimizer = torch.optim.AdamW(objective.roles["model"].parameters(), lr=3e-3)
    before = objective.validate(clip)
    for _ in range(25):
        optimizer.zero_grad()
        objective.loss(clip).backward()
        optimizer.step()
    after = objective.validate(clip)
    assert after["loss"] < before["loss"] - 1 and after["accuracy"] > 0.9
    assert after["same"] > after["different"] + 0.3


def test_a_training_goes_on_and_leaves_an_embedder(tmp_path: Path) -> None:
    run = EmbedderRun(
        data=PAIRS, model=KINDS[0], out=tmp_path / "run", steps=1, ema=0.5, threads=1, validate=1, sample_every=0
    )
    train(run)
    last = train(replace(run, steps=2))
    assert 0.5 <= last["validation/accuracy"] <= 1 and last["validation/loss"] > 0
    made = FaceEmbedder.find(tmp_path / "run")
    assert made.model.cfg == run.model and made.card["step"] == 2
    with pytest.raises(UserError, match="grain"):
        train(replace(run, steps=3, data=replace(PAIRS, grain=0.2)))


def test_the_recipes_differ_in_architecture_and_seed() -> None:
    folder = Path(__file__).parents[2] / "configs"
    loss, judge = (load_training(folder / f"heads_{name}.py") for name in ("embedder", "judge"))
    assert isinstance(loss, EmbedderRun) and isinstance(judge, EmbedderRun)
    assert loss.model.kind != judge.model.kind and loss.seed != judge.seed and loss.data.seed != judge.data.seed
    assert loss.data.split == judge.data.split  # held out for one is held out for the other
