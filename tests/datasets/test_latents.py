"""The clip stream: restartable, the same for any number of processes, no leak between training and validation."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel.actions import ActionSpec
from worldmodel.chunk import ActionControl, Clip
from worldmodel.datasets import latent_files
from worldmodel.datasets.latent_files import (
    Latents,
    LatentsInfo,
    align_actions,
    episode_file,
    weights_digest,
    write_episode,
    write_info,
)
from worldmodel.datasets.latents import TRAIN, LatentClips, _draws
from worldmodel.errors import UserError

LENGTHS = {0: 9, 1: 30, 3: 5, 7: 21, 12: 40, 13: 6, 20: 17, 21: 11}  # indices with gaps, as after a deletion
NAMES = ("turn", "forward")


def latents_of(episode: int, length: int) -> np.ndarray:
    """[T, 2, 1, 1]: every frame says which episode and which frame it is."""
    frames = np.arange(length)
    return np.stack([np.full(length, episode), frames], 1)[:, :, None, None].astype(np.float32)


def actions_of(episode: int, length: int, temporal: int) -> np.ndarray:
    """[N, 2] for the N pixel frames: the first dimension counts, the second is the episode's own."""
    count = 1 + (length - 1) * temporal
    return np.stack([np.arange(count, dtype=float), np.full(count, episode, float)], 1)


def write(
    folder: Path, lengths: dict[int, int] = LENGTHS, temporal: int = 1, names: tuple[str, ...] = NAMES, **changes
) -> Path:
    for episode, length in lengths.items():
        aligned = align_actions(actions_of(episode, length, temporal), temporal) if names else None
        write_episode(folder, episode, latents_of(episode, length), aligned)
    values = {
        "tokenizer": "autoencoder",
        "sha256": "0" * 64,
        "spatial": 8,
        "temporal": temporal,
        "shape": (2, 1, 1),
        "fps": Fraction(30000, 1001),
    }
    values |= {"action_names": names, "source": "somewhere", "camera": "front", "episodes": lengths} | changes
    write_info(folder, LatentsInfo(**values))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "latents")


def clips(*folders: Path, **fields) -> LatentClips:
    return LatentClips(path=folders, **({"length": 4, "batch": 6, "seed": 3, "validation": 0.3} | fields))


def same(a: Clip[ActionControl], b: Clip[ActionControl]) -> bool:
    pairs = [(a.x, b.x), (a.index, b.index), (a.control.action, b.control.action)]
    return all(torch.equal(x, y) for x, y in [*pairs, (a.control.has_action, b.control.has_action)])


def joined(parts: list[Clip[ActionControl]]) -> Clip[ActionControl]:
    control = ActionControl(
        torch.cat([p.control.action for p in parts]), torch.cat([p.control.has_action for p in parts])
    )
    return Clip(torch.cat([p.x for p in parts]), control, torch.cat([p.index for p in parts]))


def test_round_trip_of_files(folder):
    latents = Latents.open(folder)
    assert latents.info.fps == Fraction(30000, 1001)
    assert latents.info.episodes == LENGTHS and latents.info.frames == sum(LENGTHS.values())
    np.testing.assert_array_equal(latents.frames(12, 5, 9), latents_of(12, 40)[5:9])
    assert latents.frames(12, 5, 9).dtype == np.float16


@pytest.mark.parametrize("temporal", [1, 4])
def test_alignment(temporal):
    """Latent frame tau ends at pixel frame r * tau and carries the r actions before it, in order."""
    aligned = align_actions(np.arange(13 * temporal + 3)[:, None], temporal)
    count = 1 + (13 * temporal + 2) // temporal
    assert aligned.shape == (count, temporal, 1)
    assert (aligned[0] == 0).all()
    for tau in range(1, count):
        assert aligned[tau, :, 0].tolist() == list(range(temporal * (tau - 1), temporal * tau))


@given(first=st.integers(0, 10_000), seed=st.integers(0, 2**40), ahead=st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_restart_gives_the_same_data(folder, first, seed, ahead):
    stream = clips(folder, seed=seed).batches(first)
    for _ in range(ahead):
        next(stream)
    (expected,) = next(stream)
    (restarted,) = next(clips(folder, seed=seed).batches(first + ahead))
    assert same(expected, restarted)
    assert expected.index.tolist() == list(range((first + ahead) * 6, (first + ahead + 1) * 6))


@given(step=st.integers(0, 1000), world=st.sampled_from([1, 2, 3, 6]), micro=st.sampled_from([1, 2]))
@settings(max_examples=25, deadline=None)
def test_ranks_and_micro_batches_together_are_one_process(folder, step, world, micro):
    whole = next(clips(folder, batch=12).batches(step))[0]
    parts = [part for rank in range(world) for part in next(clips(folder, batch=12).batches(step, rank, world, micro))]
    assert len(parts) == world * micro and len({part.batch for part in parts}) == 1
    assert same(whole, joined(parts))


def test_batch_that_does_not_divide(folder):
    with pytest.raises(UserError, match="batch of 6 does not divide into 4 processes x 1"):
        next(clips(folder).batches(0, 0, 4))


def test_clips_are_consecutive_frames_of_one_episode_with_their_actions(folder):
    data = clips(folder, actions=ActionSpec(names=NAMES, low=(0.0, 0.0), high=(100.0, 100.0)))
    clip = next(clips_of_many(data))
    episode, frame = clip.x[:, :, 0, 0, 0], clip.x[:, :, 1, 0, 0]
    assert (episode == episode[:, :1]).all() and (frame.diff(dim=1) == 1).all()
    assert torch.equal(clip.control.has_action, frame > 0)
    unit = (clip.control.action + 1) * 50
    assert torch.allclose(unit[..., 0], (frame - 1).clamp(min=0), atol=1e-5)  # action i leads to frame i + 1
    assert torch.allclose(unit[..., 1], torch.where(frame > 0, episode, 0), atol=1e-5)


def clips_of_many(data: LatentClips):
    for batch in data.batches():
        yield batch[0]


@pytest.mark.parametrize("temporal", [4])
def test_packed_actions_of_a_temporal_tokenizer(tmp_path, temporal):
    spec = ActionSpec(names=NAMES, low=(0.0, 0.0), high=(200.0, 200.0), pack=temporal)
    data = clips(write(tmp_path / "latents", temporal=temporal), actions=spec)
    clip = data.clip(source=0, episode=12, start=2, length=3)
    assert clip.control.action.shape == (1, 3, 8)
    unit = ((clip.control.action + 1) * 100).round().unflatten(-1, (4, 2))
    assert unit[0, 0, :, 0].tolist() == [4, 5, 6, 7] and unit[0, 2, :, 0].tolist() == [12, 13, 14, 15]
    assert (unit[..., 1] == 12).all()


def test_windows_are_equally_likely(folder):
    """Chi-square of the drawn windows against the uniform distribution over all of them."""
    data = clips(folder, length=10, batch=2000, validation=0.0)
    clip = next(data.batches())[0]
    found = [(int(e), int(f)) for e, f in clip.x[:, 0, :, 0, 0]]
    windows = [(e, f) for e, length in LENGTHS.items() for f in range(length - 9)]
    assert set(found) <= set(windows)
    expected = 2000 / len(windows)
    chi = sum((found.count(w) - expected) ** 2 / expected for w in windows)
    assert abs(chi - len(windows)) < 4 * np.sqrt(2 * len(windows))


def test_no_episode_on_both_sides(folder):
    data = clips(folder, length=3)
    train, held = ({int(e.split("/")[1]) for e in data.split[side]} for side in ("train", "validation"))
    assert held and not train & held and train | held == set(LENGTHS)
    drawn = {int(e) for _, batch in zip(range(30), data.batches(), strict=False) for e in batch[0].x[:, 0, 0, 0, 0]}
    assert drawn == train
    checked = {int(e) for clip in data.validation_batches(30) for e in clip.x[:, 0, 0, 0, 0]}
    assert checked == held


def test_an_episodes_side_depends_on_its_index_and_the_seed_only(tmp_path, folder):
    other = write(tmp_path / "more", dict.fromkeys(range(40), 8))
    side = {e.split("/")[1]: name for name, ids in clips(other).split.items() for e in ids}
    for name, ids in clips(folder).split.items():
        assert all(side[e.split("/")[1]] == name for e in ids)
    assert clips(other).split != clips(other, seed=4).split
    assert 3 <= len(clips(other).split["validation"]) <= 21  # 12 +- 3 sigma


@pytest.mark.parametrize("seed", range(8))
def test_neither_side_of_the_split_is_empty(tmp_path, seed):
    two = write(tmp_path / "two", {0: 8, 1: 9})
    for share in (0.001, 0.999):
        split = clips(two, seed=seed, validation=share).split
        assert len(split["train"]) == len(split["validation"]) == 1


def test_validation_batches_are_fixed(folder):
    first, again = (list(clips(folder).validation_batches(3)) for _ in range(2))
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert torch.cat([clip.index for clip in first]).tolist() == list(range(18))
    assert not torch.equal(first[0].x, first[1].x)


def test_curriculum(folder):
    data = clips(folder, length=6, curriculum=((2, 3), (5, 4)))
    lengths = [batch[0].x.shape[1] for _, batch in zip(range(8), data.batches(), strict=False)]
    assert lengths == [3, 3, 4, 4, 4, 6, 6, 6]
    assert same(next(data.batches(4))[0], next(clips(folder, length=4).batches(4))[0])


def test_weights_of_several_folders(tmp_path, folder):
    other = write(tmp_path / "other", {e + 100: 50 for e in range(20)})
    data = clips(folder, other, weights=(3.0, 1.0), batch=2000)
    share = (next(data.batches())[0].x[:, 0, 0, 0, 0] < 100).float().mean().item()
    assert abs(share - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 2000)
    assert {e.split("/")[0] for e in data.split["train"]} == {"0", "1"}


def test_action_statistics_come_from_the_training_episodes(folder):
    data = clips(folder)
    rows = [actions_of(int(e.split("/")[1]), LENGTHS[int(e.split("/")[1])], 1)[:-1] for e in data.split["train"]]
    low, high = np.quantile(np.concatenate(rows), (0.01, 0.99), axis=0)
    np.testing.assert_allclose(data.action_spec.low, low)
    np.testing.assert_allclose(data.action_spec.high, high)
    assert data.action_spec.names == NAMES


def test_data_without_actions(tmp_path):
    data = clips(write(tmp_path / "latents", names=()))
    clip = next(data.batches())[0]
    assert data.action_spec is None
    assert clip.control.action.shape == (6, 4, 0) and not clip.control.has_action.any()


def test_what_the_trainer_reads(folder):
    data = clips(folder)
    assert data.fps == pytest.approx(29.97, abs=1e-3)
    assert data.tokenizer == folder / "tokenizer"


def test_too_long_clips(folder):
    with pytest.raises(UserError, match="no training episode has 41 latent frames, the longest has"):
        next(clips(folder, length=41).batches())


def test_actions_of_another_model(folder):
    spec = ActionSpec(names=("x", "y"), low=(0.0, 0.0), high=(1.0, 1.0))
    with pytest.raises(UserError, match=r"actions \['turn', 'forward'\] x 1 .* the model takes \['x', 'y'\] x 1"):
        next(clips(folder, actions=spec).batches())


def test_constant_action_names_the_dimension(tmp_path):
    single = write(tmp_path / "latents", {5: 20, 6: 20})
    train = {"0/5", "0/6"} - set(clips(single).split["validation"])
    assert len(train) == 1  # the second dimension is the episode's own number: constant in one episode
    with pytest.raises(UserError, match="action 'forward': constant"):
        next(clips(single).batches())


def test_folders_that_do_not_fit_together(tmp_path, folder):
    other = write(tmp_path / "other", sha256="1" * 64)
    with pytest.raises(UserError, match="other: sha256 is 111"):
        next(clips(folder, other).batches())


def test_broken_folders(tmp_path):
    with pytest.raises(UserError, match=r"latents\.json: no such file"):
        next(clips(tmp_path / "nothing").batches())
    broken = write(tmp_path / "latents")
    path = episode_file(broken, 1)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"000001\.safetensors: not a whole episode"):
        Latents.open(broken).frames(1, 0, 2)
    path.unlink()
    with pytest.raises(UserError, match=r"000001\.safetensors: not a whole episode"):
        Latents.open(broken).frames(1, 0, 2)
    write_episode(broken, 1, latents_of(1, 12), None)
    with pytest.raises(UserError, match=r"'latents' has shape \[12, 2, 1, 1\], latents.json says \[30, 2, 1, 1\]"):
        Latents.open(broken).frames(1, 0, 2)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("format", 2, "newer format"), ("kind", "x", "not the description"), ("fps", "a", "Invalid"), ("junk", 1, "junk")],
)
def test_broken_description(tmp_path, key, value, message):
    path = write(tmp_path / "latents") / "latents.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(UserError, match=message):
        Latents.open(path.parent)


def test_latents_that_are_not_finite_in_float16(tmp_path):
    latents = latents_of(0, 5)
    latents[3] = 1e6
    with pytest.raises(UserError, match="latent frame 3"):
        write_episode(tmp_path, 0, latents, None)


def test_views_are_written_as_they_are_read(tmp_path):
    latents = np.random.default_rng(0).standard_normal((5, 2, 3, 4)).astype(np.float16)
    actions = np.random.default_rng(1).standard_normal((5, 1, 2)).astype(np.float32)
    turned = latents.transpose(1, 3, 2, 0).copy().transpose(3, 0, 2, 1)
    write_episode(tmp_path, 0, turned, actions.transpose(2, 1, 0).copy().transpose(2, 1, 0))
    values = {"tokenizer": "t", "sha256": "", "spatial": 1, "temporal": 1, "shape": (2, 3, 4), "fps": Fraction(1)}
    info = LatentsInfo(**values, action_names=NAMES, source="", camera="", episodes={0: 5})
    np.testing.assert_array_equal(Latents(tmp_path, info).frames(0, 0, 5), latents)
    np.testing.assert_array_equal(Latents(tmp_path, info).actions(0), actions)


def test_full_disk(tmp_path, monkeypatch):
    def full(tensors, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(latent_files, "save_file", full)
    with pytest.raises(UserError, match=r"000000\.safetensors: could not be written .*No space left"):
        write_episode(tmp_path, 0, latents_of(0, 5), None)
    assert not list((tmp_path / "episodes").iterdir())


def test_digest_is_of_names_and_values():
    torch.manual_seed(0)
    a, b = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    assert weights_digest(a) != weights_digest(b)
    b.load_state_dict(a.state_dict())
    assert weights_digest(a) == weights_digest(b)


def test_draws_are_keyed_by_everything_and_pinned():
    keys = [(seed, purpose, index) for seed in (0, 1, 2**40) for purpose in range(3) for index in (0, 1, 2**40)]
    draws = [value for key in keys for value in _draws(*key)]
    assert len(set(draws)) == len(draws)
    assert _draws(3, TRAIN, 7) == (2107961781377946309, 4389052519021396382)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch": 0}, r"data\.batch must be at least 1, not 0"),
        ({"batch": -1}, r"data\.batch must be at least 1, not -1"),
        ({"length": 0}, r"data\.length must be at least 1, not 0"),
        ({"validation": float("nan")}, r"data\.validation must be a share in \[0, 1\), not nan"),
        ({"seed": -1}, r"data\.seed must be in \[0, 2\*\*63\), not -1"),
        ({"curriculum": ((10, 0),)}, r"data\.curriculum: step 10 and length 0 must be at least 1"),
    ],
)
def test_values_that_no_clip_has(values, message, tmp_path):
    with pytest.raises(UserError, match=message):
        LatentClips(**({"path": (tmp_path,), "length": 4, "batch": 2} | values))
