"""A swap generator in a stream: what it reads, its reference in the sink, rows that are alone, its folder."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_swaps import CFG, PIXELS, SIZE, STREAM, face, small_swap, streamed, target

from worldmodel.errors import UserError
from worldmodel.face.region_codec import DOT, PARTS, RegionCodec, condition_channels, landmark_maps
from worldmodel.face.swap_model import SwapModel, begin_stream, check_stream
from worldmodel.memory import FullConfig, WindowConfig
from worldmodel.models.autoencoder import AutoencoderConfig
from worldmodel.models.world import StreamConfig
from worldmodel.rollout import join, replay, rollout
from worldmodel.sampler import Euler, Pipelined
from worldmodel.serial import read_json, write_json
from worldmodel.weights import read_tensors, write_tensors

# -- what the model reads ----------------------------------------------------------------------------------------------


def test_a_landmark_is_a_dot_of_known_shape_in_its_own_map() -> None:
    points = torch.full((1, 1, 68, 2), -100.0)
    points[0, 0, 36] = torch.tensor((5.0, 2.5))  # an eye's corner: x, y
    maps = landmark_maps(points, 64)
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    expected = torch.exp(-((x - 5) ** 2 + (y - 2.5) ** 2) / (2 * (64 * DOT) ** 2))
    torch.testing.assert_close(maps[0, 0, 1], expected)
    assert maps[0, 0, [0, 2]].abs().max() == 0
    assert sorted(n for part in PARTS for n in part) == list(range(68))


def test_a_condition_is_the_region_without_the_face_the_mask_and_the_landmarks() -> None:
    control = target(1, 2)
    control = replace(control, active=torch.tensor([[True, False]]))
    found = RegionCodec(PIXELS, SIZE, 1).condition(control).condition
    assert found.shape == (1, 2, 7, SIZE, SIZE)
    torch.testing.assert_close(found[:, :, :3], control.crops * (1 - control.mask))
    torch.testing.assert_close(found[:, :, 3:4], control.mask)
    torch.testing.assert_close(found[:, :1, 4:], landmark_maps(control.landmarks, SIZE)[:, :1])
    assert found[:, 1, 4:].abs().max() == 0  # there is no face
    hidden = replace(control, mask=torch.ones_like(control.mask))
    assert RegionCodec(PIXELS, SIZE, 1).condition(hidden).condition[:, :, :3].abs().max() == 0


def test_cells_of_a_tokenizer_keep_every_pixel_of_the_maps() -> None:
    torch.manual_seed(0)
    codec = RegionCodec(AutoencoderConfig(channels=4, widths=(8,), blocks=(0,)).build(), SIZE, 1)
    control = target(1, 1)
    found = codec.condition(control).condition
    assert found.shape == (1, 1, condition_channels(4, 2), 4, 4) == (1, 1, 17, 4, 4)
    torch.testing.assert_close(found[0, 0, 4, 1, 2], control.mask[0, 0, 0, 2:4, 4:6].mean())
    maps = landmark_maps(control.landmarks, SIZE)[0, 0]
    torch.testing.assert_close(found[0, 0, 5 + 4 * 2 : 9 + 4 * 2, 3, 0], maps[2, 6:8, 0:2].flatten())
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("given", "used"), [(1, (0, 0, 0, 0)), (2, (0, 1, 0, 1)), (3, (0, 1, 2, 0)), (5, (0, 1, 2, 0))]
)
def test_reference_pictures_go_round_in_their_chunk(given: int, used: tuple[int, ...]) -> None:
    pictures = torch.arange(1.0, 1 + given)[None, :, None, None, None].expand(1, given, 3, SIZE, SIZE) / 10
    chunk = RegionCodec(PIXELS, SIZE, 3).reference(pictures, 4)
    assert (10 * chunk.x[0, :, 0, 0, 0] - 1).round().long().tolist() == list(used)
    assert chunk.executed.tolist() == [3] and chunk.start.tolist() == [0]
    assert chunk.control.condition.shape == (1, 4, 7, SIZE, SIZE) and chunk.control.condition.abs().max() == 0


# -- the stream --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("references", [1, 2])
def test_the_reference_is_in_the_sink_before_anything_is_made(references: int) -> None:
    state = small_swap(references).begin(face(count=references), 2).state
    assert state.frame.tolist() == [references] * 2
    held: torch.Tensor = state.memory.held  # pyright: ignore[reportAttributeAccessIssue] (a window's)
    assert held.tolist() == [[*range(references), -1, -1, -1]] * 2


def test_a_stream_is_the_engine_s_rollout_from_the_written_reference() -> None:
    swap, control = small_swap(), target()
    reference = swap.codec.reference(face().expand(2, 1, 3, SIZE, SIZE), 2)
    with torch.no_grad():
        state = begin_stream(swap.dit, swap.stream.memory, torch.arange(2), reference)
        controller = replay(swap.codec.condition(control), 2)
        expected = join(rollout(swap.dit, controller, swap.stream.sampler, state, 0.1)).clamp(-1, 1)
    made, state = streamed(swap, control, swap.begin(face(), 2))
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-6)
    assert not made.requires_grad and made.std() > 0.1


def test_a_state_is_a_value_and_the_reference_is_seen_to_the_end() -> None:
    swap, control = small_swap(), target(1)
    begun = swap.begin(face(), 1)
    first, state = streamed(swap, control, begun)
    again, _ = streamed(swap, control, begun)
    assert torch.equal(first, again)
    late = target(1, 2, seed=8)
    assert torch.equal(swap.generate(late, state)[0], swap.generate(late, state)[0])
    other, elsewhere = streamed(swap, control, swap.begin(face(9), 1))
    assert (other[:, -2:] - first[:, -2:]).abs().max() > 1e-2
    assert (swap.generate(late, elsewhere)[0] - swap.generate(late, state)[0]).abs().max() > 1e-2


def test_a_row_that_is_reset_begins_again_with_the_reference_and_the_other_one_goes_on() -> None:
    swap, control, late = small_swap(), target(), target(seed=8)
    begun = swap.begin(face(), 2)
    _, state = streamed(swap, control, begun)
    reset = state.reset(torch.tensor([True, False]))
    assert reset.state.frame.tolist() == [1, 9] and reset.state.active.all()
    found, _ = streamed(swap, late, reset)
    fresh, _ = streamed(swap, late, begun)
    on, _ = streamed(swap, late, state)
    torch.testing.assert_close(found[0], fresh[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(found[1], on[1], rtol=0, atol=1e-6)
    assert (fresh[0] - on[0]).abs().max() > 1e-2
    assert state.reset(torch.tensor([False, False])) is state


def test_a_row_without_a_face_waits() -> None:
    swap, control = small_swap(), target()
    gone = replace(control, active=control.active & torch.tensor([[True], [False]]))
    begun = swap.begin(face(), 2)
    _, state = streamed(swap, gone, begun)
    assert state.state.frame.tolist() == [9, 1] and state.state.active.all()
    found, _ = streamed(swap, control, state)
    expected, _ = streamed(swap, control, begun)
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-6)


# -- the folder --------------------------------------------------------------------------------------------------------


def test_a_folder_holds_all_of_a_swap(tmp_path: Path) -> None:
    swap, control = small_swap(), target(1, 4)
    swap.save(tmp_path / "swap")
    found = SwapModel.find(tmp_path / "swap")
    assert found.stream == swap.stream and found.fingerprint == swap.fingerprint
    assert not any(p.requires_grad for p in found.dit.parameters())
    made, expected = (streamed(each, control, each.begin(face(), 1))[0] for each in (found, swap))
    assert torch.equal(made, expected)
    tensors = read_tensors(tmp_path / "swap" / "model.safetensors")
    tensors["position"][0, 0] += 1
    write_tensors(tensors, tmp_path / "swap" / "model.safetensors")
    assert SwapModel.find(tmp_path / "swap").fingerprint != swap.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "policy"}, "not the configuration of a face swap"),
        ({"size": True}, "size must be a whole number"),
        ({"size": 16}, r"model.size is \(8, 8\), regions of 16 pixels through this tokenizer need \(16, 16\)"),
        ({"references": 3}, "the 3 reference pictures must be 1 to 2"),
        ({"references": 2}, "must be a WindowConfig with sink 2"),
        ({"format": 9}, "format 9 is newer than 1"),
        ({"dit": {"depth": 10**9}}, "dit.depth is 1000000000, but .* weights in all"),
    ],
)
def test_a_configuration_that_does_not_fit_is_named(change: dict, message: str, tmp_path: Path) -> None:
    small_swap().save(tmp_path)
    config = read_json(tmp_path / "config.json")
    change = {key: config[key] | value if isinstance(value, dict) else value for key, value in change.items()}
    write_json(config | change, tmp_path / "config.json")
    with pytest.raises(UserError, match=message) as error:
        SwapModel.find(tmp_path)
    assert str(tmp_path / "config.json") in str(error.value)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder; a trained swap"):
        SwapModel.find(tmp_path / "none")
    small_swap().save(tmp_path)
    (tmp_path / "tokenizer").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="the model's tokenizer is missing"):
        SwapModel.find(tmp_path)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (replace(STREAM, memory=FullConfig()), "must be a WindowConfig with sink 1"),
        (replace(STREAM, memory=WindowConfig(sink=1, ring=1)), "a ring of 1 frames does not hold one chunk of 2"),
        (replace(STREAM, sampler=Pipelined(chunks=2, steps=2)), "looks ahead"),
        (replace(STREAM, sampler=Euler(guidance=2.0)), "guidance must be 1"),
    ],
)
def test_streams_that_no_swap_can_have(stream: StreamConfig, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_stream(stream, 1, CFG)
