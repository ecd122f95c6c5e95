"""A swap generator is trained on rendered heads by the one loop, goes on exactly, and swaps as a stream."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from worldmodel.datasets.heads.autoencoder_run import RegionAutoencoderRun
from worldmodel.datasets.heads.swap_run import SwapRun
from worldmodel.datasets.heads.swaps import HeadSwaps
from worldmodel.errors import UserError
from worldmodel.face.networks.embedder import EmbedderConfig, FaceEmbedder
from worldmodel.face.region_codec import condition_channels
from worldmodel.face.swap_model import SwapModel
from worldmodel.fingerprint import fingerprint
from worldmodel.memory import WindowConfig
from worldmodel.models.autoencoder import Autoencoder, AutoencoderConfig
from worldmodel.models.dit import DiTConfig
from worldmodel.models.world import StreamConfig
from worldmodel.objectives.joint_rec_id import JointRecId
from worldmodel.objectives.swap_matching import ShortContext, SwapMatching
from worldmodel.optim import AdamW
from worldmodel.run import load_training
from worldmodel.sampler import Euler
from worldmodel.train import train

SIZE = 16
HEADS = HeadSwaps(size=SIZE, length=4, batch=2, people=8, held_out=4, occluded=0.0)
DIT = DiTConfig(
    channels=3, size=(SIZE, SIZE), condition=condition_channels(3, 1), patch=4, chunk=2, dim=32, depth=2, heads=2,
    hidden=48, time_width=32,
)  # fmt: skip
STREAM = StreamConfig(memory=WindowConfig(sink=1, ring=3), sampler=Euler(steps=2))


@pytest.fixture
def embedder(tmp_path: Path) -> Path:
    torch.manual_seed(5)
    FaceEmbedder(EmbedderConfig(width=8, dim=8).build()).save(tmp_path / "embedder")
    return tmp_path / "embedder"


def small_run(out: Path, **changes) -> SwapRun:
    values = {"data": HEADS, "model": DIT, "stream": STREAM, "steps": 2, "ema": 0.5, "threads": 1, "validate": 1}
    return SwapRun(**({"out": out, "sample_every": 0, "optimizer": AdamW(lr=3e-3)} | values | changes))


@pytest.mark.needs("h264")
def test_a_training_goes_on_exactly_and_leaves_a_swap(tmp_path: Path, embedder: Path) -> None:
    objective = SwapMatching(identity=JointRecId(embedder=embedder), rollouts=ShortContext(chunks=(1, 1)))
    run = small_run(tmp_path / "whole", objective=objective)
    whole = train(run)
    half = replace(run, out=tmp_path / "half")
    train(replace(half, steps=1))
    assert train(half) == whole  # losses, cosines, validation
    made, again = (SwapModel.find(tmp_path / name) for name in ("whole", "half"))
    assert made.card["recogniser"] == fingerprint(FaceEmbedder.find(embedder).model)
    assert made.fingerprint == again.fingerprint and made.card["step"] == 2
    assert (tmp_path / "whole" / "samples" / "step_00000002.mp4").is_file()
    assert {"model/reconstruction", "model/cosine", "validation/psnr", "validation/cosine"} <= set(whole)
    with pytest.raises(UserError, match=r"weight was 0\.1, this run's is 0.2"):
        wrong = replace(objective, identity=JointRecId(embedder=embedder, weight=0.2))
        train(replace(run, steps=3, objective=wrong))


def small_autoencoder(out: Path, **changes) -> RegionAutoencoderRun:
    model = AutoencoderConfig(channels=3, widths=(8,), blocks=(0,))
    values = {"data": HEADS, "model": model, "steps": 2, "ema": 0.5, "threads": 1, "validate": 1, "sample_every": 0}
    return RegionAutoencoderRun(**({"out": out} | values | changes))


@pytest.mark.needs("h264")
def test_an_autoencoder_of_regions_goes_on_exactly_and_a_swap_is_trained_in_its_latents(tmp_path: Path) -> None:
    run = small_autoencoder(tmp_path / "whole")
    whole = train(run)
    half = replace(run, out=tmp_path / "half")
    train(replace(half, steps=1))
    assert train(half) == whole
    made = Autoencoder.load(tmp_path / "whole" / "model")
    assert fingerprint(made) == fingerprint(Autoencoder.load(tmp_path / "half" / "model"))
    latents = torch.cat([made.encode(next(run.data.batches(step))[0].x) for step in range(8)]).movedim(2, 0).flatten(1)
    assert torch.allclose(latents.mean(1), torch.zeros(3), atol=2e-3)
    assert torch.allclose(latents.std(1), torch.ones(3), atol=2e-3)
    dit = replace(DIT, size=(8, 8), condition=condition_channels(3, 2), patch=2)
    swap = small_run(tmp_path / "swap", tokenizer=str(tmp_path / "whole"), model=dit)
    train(swap)
    assert SwapModel.find(tmp_path / "swap").codec.tokenizer.spatial == 2


def test_an_autoencoder_of_regions_sees_faces_and_what_is_left_without_them(tmp_path: Path) -> None:
    plain, (seen,) = next(HEADS.batches())[0], next(small_autoencoder(tmp_path).batches.batches())
    assert torch.equal(seen.x[:, :4], plain.x)
    hidden = plain.control.target.mask == 1
    assert hidden.any() and not seen.x[:, 4:][hidden.expand_as(plain.x)].any()
    assert torch.equal(seen.x[:, 4:], plain.control.target.crops * (1 - plain.control.target.mask))
    with pytest.raises(UserError, match="regions of 16 pixels do not cut into its cells of 32"):
        small_autoencoder(tmp_path, model=AutoencoderConfig(widths=(4,) * 5, blocks=(0,) * 5)).build()


def test_the_recipes_fit_their_data_and_each_other(tmp_path: Path) -> None:
    folder, names = Path(__file__).parents[2] / "configs", ("heads_autoencoder", "heads_swap", "heads_swap_rollouts")
    autoencoder, first, rollouts = (load_training(folder / f"{name}.py") for name in names)
    assert isinstance(autoencoder, RegionAutoencoderRun)
    assert isinstance(first, SwapRun) and isinstance(rollouts, SwapRun)
    autoencoder.build().save(tmp_path / "tokenizer")
    for run in (first, rollouts):
        assert Path(run.tokenizer) == autoencoder.out
        codec = replace(run, tokenizer=str(tmp_path / "tokenizer")).codec
        assert codec.size == autoencoder.data.size == 64 and codec.references == 1
    assert rollouts.init == first.out and rollouts.model == first.model and rollouts.data.length == 16
    assert first.data.split == rollouts.data.split  # held out for one is held out for the other


def test_a_training_begins_with_another_one_s_weights(tmp_path: Path) -> None:
    run = small_run(tmp_path / "first", steps=0)
    torch.manual_seed(1)
    begun = run.build()
    SwapModel(begun, run.codec, run.stream).save(tmp_path / "made")
    torch.manual_seed(2)
    found = replace(run, init=tmp_path / "made").build()
    for name, tensor in begun.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)
    torch.manual_seed(3)
    AutoencoderConfig(channels=3, widths=(8,), blocks=(0,)).build().save(tmp_path / "tokenizer")
    half = replace(DIT, size=(8, 8), condition=condition_channels(3, 2))
    other = small_run(tmp_path / "second", tokenizer=str(tmp_path / "tokenizer"), model=half, init=tmp_path / "made")
    with pytest.raises(UserError, match="made: was trained with another tokenizer than"):
        other.build()


def test_parts_that_do_not_fit_are_named_before_anything_starts(tmp_path: Path, embedder: Path) -> None:
    for changes, message in (
        ({"model": replace(DIT, condition=9)}, r"model\.condition is 9, regions of 16 pixels .* need 7"),
        ({"data": replace(HEADS, references=3)}, "the 3 reference pictures must be 1 to 2"),
        ({"data": replace(HEADS, references=2)}, "must be a WindowConfig with sink 2"),
        ({"data": replace(HEADS, length=5)}, "clips of 5 frames must be chunks of 2"),
        ({"tokenizer": str(tmp_path / "none" / "such" / "place")}, "none"),
        ({"objective": SwapMatching(identity=JointRecId(embedder=tmp_path / "nobody"))}, "nobody"),
    ):
        with pytest.raises(UserError, match=message):
            small_run(tmp_path / "run", **changes).build()
    objective = SwapMatching(identity=JointRecId(embedder=embedder))
    shutil.copytree(embedder, tmp_path / "moved")
    moved = SwapMatching(identity=JointRecId(embedder=tmp_path / "moved"))
    known = small_run(tmp_path / "run", objective=objective).identity(None)
    assert small_run(tmp_path / "run", objective=moved).identity(None) == known  # by its weights, wherever it lies
