"""Context tokens over the wire: a trial becomes a token, and a token corrects the policy, as they do at home."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_robot_client import CHUNK, METADATA, Delayed
from tiny_served import INTERFACE, SIZE, observation, tiny_policy

from worldmodel import cli
from worldmodel.errors import UserError
from worldmodel.fingerprint import fingerprint
from worldmodel.policies.adaptation import Adaptation
from worldmodel.policies.context_encoder import ContextConfig
from worldmodel.policies.episodes import Trial
from worldmodel.policies.observation import Observation
from worldmodel.policies.planning import plan
from worldmodel.policies.serving.client import PolicyClient, Refused
from worldmodel.policies.serving.contexts import MOMENTS
from worldmodel.policies.serving.learning import Learning
from worldmodel.policies.serving.link import Reply
from worldmodel.policies.serving.requests import Request
from worldmodel.policies.serving.robot_client import RobotClient, connect
from worldmodel.policies.serving.served import ServedPolicy
from worldmodel.policies.serving.server import background, largest
from worldmodel.policies.serving.waiting import Line

WIDTH = 16


@pytest.fixture(scope="module")
def parts():
    policy = tiny_policy()
    torch.manual_seed(1)
    encoder = ContextConfig(width=WIDTH, heads=2, depth=1).build(policy.model)
    for parameter in encoder.parameters():
        parameter.data = parameter + 0.3 * torch.randn_like(parameter)
    return policy, Adaptation(encoder.eval().requires_grad_(False), fingerprint(policy.model))


@pytest.fixture(scope="module")
def address(parts):
    with background(ServedPolicy(parts[0], adaptation=parts[1])) as address:
        yield address


def finished(moments: int = 5, seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    pictures = rng.integers(0, 256, (2, moments, SIZE, SIZE, 3), dtype=np.uint8)
    return {
        "observation.images.front": pictures[0],
        "observation.images.side": pictures[1],
        "observation.state": rng.uniform(-1, 1, (moments, 3)).astype(np.float32),
        "actions": rng.uniform(0, 0.5, (moments, 2)).astype(np.float32),
    }


def at_home(trial: dict) -> Trial:
    image = np.stack([trial["observation.images.front"], trial["observation.images.side"]], 1)
    return Trial(image.transpose(0, 1, 4, 2, 3).copy(), trial["observation.state"], trial["actions"])


def test_a_trial_becomes_the_token_that_it_is_at_home(parts, address):
    policy, adaptation = parts
    with PolicyClient(address) as client:
        assert client.metadata["context"] == {
            "token": {"dtype": "float32", "shape": [WIDTH]},
            "trial": ["observation.images.front", "observation.images.side", "observation.state", "actions"],
            "moments": MOMENTS,
        }
        assert client.metadata["optional"][-1] == "token"
        for seed, moments in ((0, 5), (1, MOMENTS)):
            trial = finished(moments, seed)
            token = client.token(trial)
            np.testing.assert_array_equal(token, adaptation.token(policy, at_home(trial)).numpy())
        assert token.any()
        answer = client.infer({"trial": trial})
        assert set(answer) == {"token", "server_timing"} and answer["server_timing"]["rows"] == 1


def test_a_token_corrects_the_policy_and_zeros_change_no_bit(parts, address):
    policy, adaptation = parts
    token = np.random.default_rng(2).standard_normal(WIDTH)
    asked = observation() | {"seed": 3, "step": 4}
    with background(ServedPolicy(policy)) as bare, PolicyClient(bare) as client:
        before = client.infer(asked)["actions"]
        assert "context" not in client.metadata and "token" not in client.metadata["optional"]
    with PolicyClient(address) as client:
        for same in (asked, asked | {"token": np.zeros(WIDTH)}):
            np.testing.assert_array_equal(client.infer(same)["actions"], before)
        corrected = client.infer(asked | {"token": token})["actions"]
        np.testing.assert_array_equal(client.infer(asked)["actions"], before)  # nothing is kept
    assert np.abs(corrected - before).max() > 1e-4
    seen = Observation(
        image=torch.from_numpy(np.stack([asked["observation.images.front"], asked["observation.images.side"]]))
        .permute(0, 3, 1, 2)[None].contiguous(),
        state=torch.from_numpy(asked["observation.state"])[None],
        words=torch.tensor([[1, 2]]),
        length=CHUNK,
        context=adaptation.context(torch.from_numpy(token.astype(np.float32)))[None],
    )  # fmt: skip
    made = plan(policy.model, policy.acting.sampler, seen, torch.tensor([3]), torch.tensor([4]))
    np.testing.assert_array_equal(corrected, policy.model.in_units(made)[0].numpy())


def test_together_rows_with_and_without_a_token_agree_to_rounding(parts):
    served = ServedPolicy(*parts[:1], together=True, adaptation=parts[1])
    rng = np.random.default_rng(5)
    plain = Request(rng.integers(0, 256, (2, 3, SIZE, SIZE), dtype=np.uint8), np.zeros(3, np.float32), (1, 2), 0, 0)
    told = [replace(plain, token=rng.standard_normal(WIDTH).astype(np.float32)) for _ in range(2)]
    mixed = served.infer([told[0], plain, told[1]])
    for row, alone in zip(mixed, (told[0], plain, told[1]), strict=True):
        np.testing.assert_allclose(row, replace(served, together=False).infer([alone])[0], atol=1e-5)


def test_a_trial_and_observations_that_wait_are_each_served(parts):
    policy, adaptation = parts
    served = ServedPolicy(policy, together=True, adaptation=adaptation)
    trial = at_home(finished())
    request = Request(np.zeros((2, 3, SIZE, SIZE), np.uint8), np.zeros(3, np.float32), (1, 2), 0, 0)
    line = Line(served, rows=8)
    asked = [line.ask(each) for each in (request, request, trial, request)]
    with line:
        answers = [each.result(30) for each in asked]
    assert [answer.rows for answer in answers] == [2, 2, 1, 1] and line.answered == 3
    np.testing.assert_array_equal(answers[2].made, adaptation.token(policy, trial).numpy())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m["trial"].pop("actions"), "missing in trial: actions"),
        (lambda m: m["trial"].update(reward=1), "unknown in trial: reward"),
        (lambda m: m.update(prompt="go"), "unknown beside trial: prompt"),
        (lambda m: m.update(trial=3), "a map is needed, not 3"),
        (lambda m: m["trial"].update(actions=np.zeros((4, 2))), "as many moments in every array, not 4, 5"),
        (lambda m: m.update(trial=finished(MOMENTS + 1)), f"1 to {MOMENTS} moments are read, not {MOMENTS + 1}"),
        (lambda m: m.update(trial=finished(0)), f"1 to {MOMENTS} moments are read, not 0"),
        (lambda m: m["trial"].update({"observation.state": np.zeros((5, 2))}), "shape (5, 3) is needed, not (5, 2)"),
        (lambda m: m["trial"].update(actions=np.full((5, 2), np.nan)), "not finite in target_x, target_y"),
        (lambda m: m["trial"].update({"observation.images.side": np.zeros((5, 16, 16, 3))}), "an array of uint8"),
        (lambda m: m["trial"].update({"observation.state": "x"}), "an array of floats"),
    ],
)
def test_a_wrong_trial_is_told_in_one_line_and_the_connection_goes_on(address, change, said):
    message = {"trial": finished()}
    change(message)
    with PolicyClient(address) as client:
        with pytest.raises(Refused) as refused:
            client.infer(message)
        assert said in str(refused.value) and "\n" not in str(refused.value)
        assert client.infer(observation())["actions"].shape == (CHUNK, 2)


@pytest.mark.parametrize("token", [np.zeros(WIDTH - 1), np.full(WIDTH, np.inf), 3, "x"])
def test_a_wrong_token_is_told(address, token):
    with PolicyClient(address) as client, pytest.raises(Refused, match="token: "):
        client.infer(observation() | {"token": token})


def test_without_an_encoder_there_are_no_tokens(parts):
    with background(ServedPolicy(parts[0])) as bare, PolicyClient(bare) as client:
        with pytest.raises(Refused, match="no context encoder"):
            client.token(finished())
        with pytest.raises(Refused, match="unknown: token"):
            client.infer(observation() | {"token": np.zeros(WIDTH)})
        with connect(bare, prompt="go there") as robot, pytest.raises(UserError, match="no context encoder"):
            robot.finish(success=False)


def test_the_largest_trial_fits_into_a_message(parts):
    large = replace(INTERFACE, size=(240, 320))
    policy = replace(parts[0])
    policy.model.interface, kept = large, policy.model.interface
    try:
        limit = largest(ServedPolicy(policy, adaptation=parts[1]))
    finally:
        policy.model.interface = kept
    assert limit > MOMENTS * 2 * 240 * 320 * 3


def test_tokens_are_summed_or_averaged_and_forgotten():
    for way, wanted in (("sum", [4.0, 6.0]), ("mean", [2.0, 3.0])):
        learning = Learning({"trial": [], "moments": 2}, way)
        assert learning.token is None
        learning.tokens = [np.float32([1, 2]), np.float32([3, 4])]
        np.testing.assert_array_equal(learning.token, np.float32(wanted))
        learning.begin()
        assert learning.token is not None
        learning.forget()
        assert learning.token is None


class Teaching(Delayed):
    """A link whose n-th trial has the token [n, n]."""

    def __init__(self, *delays) -> None:
        super().__init__(*delays)
        facts = {"token": {"shape": [2]}, "trial": ["observation.state", "actions"], "moments": 3}
        self.metadata = METADATA | {"context": facts}
        self.trials: list[dict] = []

    def ask(self, request) -> None:
        if "trial" not in request:
            super().ask(request)
            return
        assert self.ready
        self.trials.append(request["trial"])
        self.left, self.answer = 1, Reply(None, token=np.full(2, len(self.trials), np.float32))


def trial_of(client: RobotClient, steps: int) -> list:
    return [client.act({"observation.state": np.array([float(n)])}) for n in range(steps)]


def test_the_robots_client_keeps_its_trial_and_sends_what_the_failed_ones_have_shown():
    link = Teaching(1)
    client = RobotClient(link, prompt="go", delay=1)
    commands = trial_of(client, 20)
    asked = [request["step"] for request in link.asked]
    moments = [n for n in asked if commands[n].action is not None][:3]
    assert len(asked) > 3 and all("token" not in request for request in link.asked)
    client.finish(success=False)
    assert client.tokens == 1 and client.act({}).state == "stopped"
    np.testing.assert_array_equal(link.trials[0]["observation.state"], np.array(moments, float)[:, None])
    np.testing.assert_array_equal(link.trials[0]["actions"], np.stack([commands[n].action for n in moments]))
    for wanted, success in ((1, False), (3, True), (3, False)):
        client.reset()
        link.asked.clear()
        trial_of(client, 20)
        assert link.asked and all((request["token"] == wanted).all() for request in link.asked)
        client.finish(success)
    assert client.tokens == 3 and len(link.trials) == 3
    client.forget()
    client.reset()
    link.asked.clear()
    trial_of(client, 9)
    assert client.tokens == 0 and all("token" not in request for request in link.asked)
    with pytest.raises(UserError, match="nothing of this trial is known"):
        RobotClient(Teaching(1), prompt="go").finish(success=False)


def test_a_real_robot_learns_over_the_wire(parts, address):
    policy, adaptation = parts
    seen = {key: value for key, value in observation().items() if key != "prompt"}
    with connect(address, prompt="go there", seed=1) as client:
        while len(client._learning._seen) < 2:
            client.act(seen)
            threading.Event().wait(0.001)
        kept = client._learning.trial()["trial"]
        client.finish(success=False)
        assert client.tokens == 1
        np.testing.assert_array_equal(client._learning.token, adaptation.token(policy, at_home(kept)).numpy())
        client.reset()
        while client.act(seen).state != "policy":
            threading.Event().wait(0.001)


def test_an_encoder_of_another_policy_is_refused_by_the_command(parts, tmp_path, capsys):
    policy, adaptation = parts
    policy.save(tmp_path / "policy")
    replace(adaptation, policy="0" * 32).save(tmp_path / "encoder")
    options = ["--encoder", str(tmp_path / "encoder"), "--port", "0"]
    assert cli.main(["serve-policy", str(tmp_path / "policy"), *options]) == 2
    assert "trained for another policy" in capsys.readouterr().err
