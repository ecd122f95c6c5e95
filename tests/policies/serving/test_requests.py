"""Observations: read as they were sent, or all that is wrong with them in one line; and what becomes of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_served import CHUNK, EXECUTE, INTERFACE, SIZE, Obedient, observation, tiny_policy

from worldmodel.errors import UserError
from worldmodel.policies.observation import Observation
from worldmodel.policies.planning import Committed, plan
from worldmodel.policies.serving.framing import pack, unpack
from worldmodel.policies.serving.requests import metadata, read_request
from worldmodel.policies.serving.served import ServedPolicy


def read(message, seed=0, step=0):
    return read_request(unpack(pack(message)), Obedient(), seed, step)


def test_a_request_holds_what_was_sent():
    sent = observation() | {"committed": np.array([[0.1, 0.2]], ">f8"), "delay": np.int64(1), "step": 5}
    got = read(sent, seed=7, step=3)
    for camera, name in enumerate(("front", "side")):
        np.testing.assert_array_equal(got.image[camera].transpose(1, 2, 0), sent[f"observation.images.{name}"])
    np.testing.assert_array_equal(got.state, sent["observation.state"])
    assert (got.words, got.seed, got.step, got.delay) == ((1, 2), 7, 5, 1)
    np.testing.assert_array_equal(got.committed, np.float32([[0.1, 0.2]]))
    assert read(observation(), step=3).step == 3


def test_all_that_is_wrong_is_said_at_once():
    bad = {
        "observation.images.front": np.zeros((3, SIZE, SIZE), np.uint8),
        "observation.state": np.array([0, np.nan, np.inf]),
        "prompt": "go home",
        "observation.images.wrist": 0,
        "seed": -1,
        "step": True,
        "delay": 9,
    }
    with pytest.raises(UserError) as error:
        read(bad)
    for line in (
        "missing: observation.images.side",
        "unknown: observation.images.wrist",
        "observation.images.front: shape (16, 16, 3) is needed, not (3, 16, 16)",
        "observation.state: not finite in y, opening",
        "does not know home",
        "seed: a whole number in [0, 4611686018427387903] is needed, not -1",
        "step: a whole number in [0, 2147483647] is needed, not True",
        "delay: a whole number in [0, 8] is needed, not 9",
    ):
        assert line in str(error.value)
    assert str(error.value).count("; ") == 8 and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("observation.images.front", np.zeros((SIZE, SIZE, 3), np.float32), "array of uint8 .* not float32 of shape"),
        ("observation.images.front", b"jpeg", "not a bytes"),
        ("observation.state", np.zeros(4, np.float32), r"shape \(3\) is needed, not \(4\)"),
        ("observation.state", np.zeros(3, np.int64), "array of floats .* not int64"),
        ("observation.state", np.full(3, 1e300), "not finite in x, y, opening"),
        ("observation.state", [0.0, 0.0, 0.0], "not a list"),
        ("prompt", " ", "prompt: an instruction is needed, of the words "),
        ("prompt", 5, "a text of at most 1000"),
        ("prompt", "x" * 2000, "a text of at most 1000"),
        ("delay", 1, "means nothing without committed"),
        ("committed", np.zeros((0, 2), np.float32), r"n in \[1, 8\]"),
        ("committed", np.zeros((CHUNK + 1, 2), np.float32), r"n in \[1, 8\]"),
        ("committed", np.zeros((2, 3), np.float32), r"committed: shape \(2, 2\) is needed"),
        ("committed", np.array([[0, np.nan]]), "committed: not finite in target_y"),
        ("seed", 2**62, "seed: a whole number"),
        ("seed", 1.0, "seed: a whole number"),
    ],
)
def test_one_wrong_thing(key, value, said):
    with pytest.raises(UserError, match=said) as error:
        read(observation() | {key: value})
    assert ";" not in str(error.value)


def test_more_fixed_than_committed_is_refused():
    with pytest.raises(UserError, match="delay: 3 steps, but committed has 2 actions"):
        read(observation() | {"committed": np.zeros((2, 2)), "delay": 3})


def test_the_metadata_describes_a_request_that_is_accepted():
    said = unpack(pack(metadata(Obedient(), 1000)))
    made = {}
    for key, of in said["observation"].items():
        made[key] = np.zeros(of["shape"], of["dtype"]) if of["dtype"] != "str" else " ".join(of["words"])
    assert read(made).words == (1, 2)
    assert said["actions"] == {"dtype": "float32", "shape": [CHUNK, 2], "names": ["target_x", "target_y"]}
    assert (said["fps"], said["execute"], said["max_message"]) == (20.0, EXECUTE, 1000)


def requests(count: int):
    """With different observations, seeds, and committed actions of every second one."""
    made = []
    for n in range(count):
        extra = {"committed": np.full((3, 2), 0.1 * n, np.float32), "delay": 2} if n % 2 else {}
        made.append(read(observation(n) | extra, seed=n, step=4 * n))
    return made


@pytest.mark.parametrize("chunking", ["naive", "guided", "prefix"])
def test_an_answer_is_the_plan_of_its_observation(chunking):
    policy = tiny_policy()
    request = requests(2)[1]
    (answer,) = ServedPolicy(policy, chunking=chunking).infer([request])
    seen = Observation(
        torch.from_numpy(request.image)[None], torch.from_numpy(request.state)[None], torch.tensor([[1, 2]]), CHUNK
    )
    assert request.committed is not None
    rest = torch.from_numpy(np.repeat(request.committed[-1:], CHUNK - 3, 0))
    held = policy.model.normalised(torch.cat((torch.from_numpy(request.committed), rest)))[None]
    seed, step = torch.tensor([1]), torch.tensor([4])
    made = plan(policy.model, policy.acting.sampler, seen, seed, step, chunking, Committed(held, 3, 2))
    assert answer.dtype == np.float32 and np.ptp(answer) > 0
    np.testing.assert_array_equal(answer, policy.model.in_units(made)[0].numpy())
    free = ServedPolicy(policy, chunking=chunking).infer([replace(request, committed=None, delay=0)])[0]
    assert (free == answer).all() == (chunking == "naive")
    if chunking == "prefix":
        np.testing.assert_allclose(answer[:2], request.committed[:2], atol=1e-6)


def test_an_answer_is_the_same_to_the_last_bit_whoever_else_is_served():
    served, asked = ServedPolicy(tiny_policy()), requests(5)
    alone = [served.infer([request])[0] for request in asked]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0], [3, 1]):
        for place, answer in zip(order, served.infer([asked[i] for i in order]), strict=True):
            np.testing.assert_array_equal(answer, alone[place])


def test_together_the_answers_agree_to_rounding():
    asked = requests(6)
    alone, batched = (ServedPolicy(tiny_policy(), together=together).infer(asked) for together in (False, True))
    for one, other in zip(alone, batched, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert len({answer.tobytes() for answer in alone}) == 6
    assert INTERFACE.fps == 20
