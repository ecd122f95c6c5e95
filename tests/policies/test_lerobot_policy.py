"""Policies of lerobot in our rollout and evaluation: the same actions as under lerobot, the same rows for any number of
robots, and folders that do not fit refused in one line."""

import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from demonstrated import ACTIONS, SIZE, STATES, picture, write_dataset
from lerobot_trained import train_lerobot
from safetensors.torch import load_file, save_file
from test_episodes import FakeRobot

from worldmodel import noise
from worldmodel.errors import UserError
from worldmodel.memory import LastFrameConfig
from worldmodel.policies.episodes import Robots, Settings, cases, evaluate
from worldmodel.policies.lerobot_folder import LeRobotFolder, pretrained_in
from worldmodel.policies.lerobot_policy import LeRobotPolicy
from worldmodel.policies.observation import Observation
from worldmodel.policies.planning import plan
from worldmodel.policies.policy import find_policy
from worldmodel.policies.serving.requests import read_request
from worldmodel.policies.serving.served import ServedPolicy
from worldmodel.rollout import rollout, start

PRE, POST = "policy_preprocessor.json", "policy_postprocessor.json"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "there", episodes=2)


@pytest.fixture(scope="module")
def folders(data, tmp_path_factory) -> dict[str, Path]:
    """ACT and diffusion after two steps; VQ-BeT, which sees one camera and learns in phases, as it was born."""
    one = write_dataset(tmp_path_factory.mktemp("one") / "there", episodes=2, cameras=("front",))
    made = {kind: train_lerobot(kind, data, tmp_path_factory.mktemp(kind) / "policy") for kind in ("act", "diffusion")}
    return made | {"vqbet": train_lerobot("vqbet", one, tmp_path_factory.mktemp("vqbet") / "policy", steps=0)}


@pytest.fixture(scope="module")
def policies(folders) -> dict[str, LeRobotPolicy]:
    return {kind: LeRobotPolicy.load(folder) for kind, folder in folders.items()}


class TwoCameras(FakeRobot):
    """A hand that goes halfway to its target, seen by two cameras."""

    def look(self) -> dict[str, np.ndarray]:
        frame = picture(np.clip(self.hand[:2], -1, 1))
        return {"front": frame, "side": frame[::-1, ::-1].copy()}

    def _see(self) -> dict:
        return {"state": np.append(self.hand, 0.9).astype(np.float32)}


def rows_of(policy, todo, settings: Settings) -> list:
    with closing(Robots(policy.interface, lambda task, _: TwoCameras(task))) as robots:
        return list(evaluate(policy, todo, settings, robots).rows)


def seen(policy: LeRobotPolicy, rows: int = 1, back: int = 1) -> Observation:
    """An observation with `back` others before it."""
    rng = torch.Generator().manual_seed(3 + back)
    image = torch.randint(
        0, 256, (rows, len(policy.interface.cameras), 3, SIZE, SIZE), generator=rng, dtype=torch.uint8
    )
    words = torch.tensor([policy.interface.encode("go there")] * rows)
    made = Observation(image, 0.3 * torch.rand(rows, 4, generator=rng), words, policy.model.chunk)
    return replace(made, past=seen(policy, rows, back - 1)) if back else made


def batch_of(policy: LeRobotPolicy, observation: Observation) -> dict:
    """What lerobot-eval hands to the policy."""
    pictures = {
        f"observation.images.{camera}": observation.image[:, at].float() / 255
        for at, camera in enumerate(policy.interface.cameras)
    }
    task = ["go there"] * observation.batch
    return policy.model.preprocess({**pictures, "observation.state": observation.state, "task": task})


def asked(policy: LeRobotPolicy, observation: Observation, seed: int = 5, step: int = 8) -> torch.Tensor:
    return plan(policy.model, policy.acting.sampler, observation, torch.tensor([seed]), torch.tensor([step]))


def test_sizes_and_ways_are_those_of_the_folder(policies):
    act, diffusion = policies["act"], policies["diffusion"]
    assert (act.model.chunk, act.acting.execute, act.history) == (8, 4, 1)
    assert (diffusion.model.chunk, diffusion.acting.execute, diffusion.history) == (4, 4, 2)
    assert (policies["vqbet"].model.chunk, policies["vqbet"].history, policies["vqbet"].acting.execute) == (4, 3, 4)
    for policy in (act, diffusion):
        assert policy.interface.cameras == ("front", "side") and policy.interface.size == (SIZE, SIZE)
        assert policy.interface.misfits(STATES, ACTIONS, 20.0) == []
        assert policy.interface.misfits(STATES[:3], (*ACTIONS, "more"), 20.0) == [
            "state: the policy has 4 dimensions, the robot 3: hand_x, hand_y, hand_z",
            "action: the policy has 4 dimensions, the robot 5: target_x, target_y, target_z, grip, more",
        ]


def test_act_does_what_it_does_under_lerobot(policies):
    act = policies["act"]
    observation = seen(act)
    made = asked(act, observation)
    act.model.policy.reset()
    for k in range(act.acting.execute):
        action = act.model.policy.select_action(batch_of(act, observation))
        assert torch.equal(act.model.postprocess(action), made[:, k])
    assert made.shape == (1, 8, 4) and torch.equal(act.model.in_units(made), made)


@pytest.mark.parametrize(("kind", "back"), [("diffusion", 1), ("vqbet", 2)])
def test_a_policy_that_looks_back_does_what_it_does_under_lerobot(policies, kind, back):
    adapted = policies[kind]
    assert adapted.history == back + 1
    observation = seen(adapted, back=back)
    made = asked(adapted, observation)
    before = [observation]
    while before[0].past is not None:
        before.insert(0, before[0].past)
    policy = adapted.model.policy
    policy.reset()
    for moment in before[:-1]:
        policy.select_action(batch_of(adapted, moment))
        policy._queues["action"].clear()
    torch.manual_seed(int(noise.row_seed(5, torch.tensor([8]))))
    for k in range(4):
        action = policy.select_action(batch_of(adapted, observation))
        assert torch.equal(adapted.model.postprocess(action), made[:, k])
    alone = asked(adapted, replace(observation, past=None))
    assert not torch.equal(alone, made)
    assert torch.equal(alone, asked(adapted, replace(observation, past=replace(observation, past=None))))


def test_an_answer_is_a_function_of_its_own_row(policies):
    diffusion = policies["diffusion"]
    observation = seen(diffusion, rows=3)
    state = torch.random.get_rng_state()
    seeds, steps = torch.tensor([5, 6, 7]), torch.tensor([8, 0, 16])
    made = plan(diffusion.model, diffusion.acting.sampler, observation, seeds, steps)
    assert torch.equal(torch.random.get_rng_state(), state)
    for row in range(3):
        one = observation.select(torch.tensor([row]))
        assert torch.equal(asked(diffusion, one, int(seeds[row]), int(steps[row]))[0], made[row])
    one = observation.select(torch.tensor([0]))
    assert not torch.equal(asked(diffusion, one, seed=6), made[:1])
    assert not torch.equal(asked(diffusion, one, step=9), made[:1])


@pytest.mark.parametrize("kind", ["act", "diffusion"])
def test_rows_are_the_same_bit_for_bit_for_any_number_of_robots(policies, kind):
    policy = policies[kind]
    todo = cases(["go there"], ["nominal", "actuation-bias:0.2,0,0"], 2, 3)
    settings = Settings(horizon=9)
    one = rows_of(policy, todo, settings)
    assert len({row.border_jerk for row in one}) == 4
    for changed in ({"parallel": 4}, {"parallel": 3, "together": True}):
        assert rows_of(policy, todo, replace(settings, **changed)) == one
    if kind == "diffusion":
        assert rows_of(policy, todo, replace(settings, seed=1)) != one


def test_the_robot_is_looked_at_as_often_as_the_policy_looks_back(policies, monkeypatch):
    looks: list[int] = []
    robot = TwoCameras("go there")
    look = robot.look
    monkeypatch.setattr(robot, "look", lambda: (looks.append(len(robot.log)), look())[1])
    with closing(Robots(policies["diffusion"].interface, lambda task, _: robot)) as robots:
        evaluate(policies["diffusion"], cases(["go there"], ["nominal"], 1, 0), Settings(horizon=12), robots)
    assert looks == [0, 3, 4, 7, 8, 11]


def test_the_engine_rolls_it_out(policies):
    act = policies["act"]
    observation = seen(act)
    controls = iter([observation, observation, None])
    state = start(act.model, LastFrameConfig(), torch.tensor([5]))
    made = [chunk.x for chunk, _ in rollout(act.model, lambda _: next(controls), act.acting.sampler, state)]
    assert len(made) == 2 and torch.equal(made[0], made[1])
    with pytest.raises(UserError, match="makes its chunks itself"):
        act.model.velocity(made[0], torch.zeros(1, 8), observation)


def test_the_server_answers_with_it(policies):
    diffusion = policies["diffusion"]
    served = ServedPolicy(diffusion, chunking="naive")
    alone = replace(seen(diffusion), past=None)
    pictures = alone.image[0].permute(0, 2, 3, 1).numpy()
    message = {"observation.images.front": pictures[0], "observation.images.side": pictures[1]}
    request = read_request(message | {"observation.state": alone.state[0].numpy()}, served, seed=5, step=8)
    (made,) = served.infer([request])
    np.testing.assert_array_equal(made, asked(diffusion, alone)[0].numpy())
    with pytest.raises(UserError, match="chunking guided: this policy can join its chunks by naive only"):
        ServedPolicy(diffusion, chunking="guided")


def test_what_it_cannot_do_is_told(policies):
    with pytest.raises(UserError, match="by naive only"):
        Settings(delay=1, chunking="guided").check(policies["act"])
    Settings(delay=1).check(policies["act"])
    with pytest.raises(UserError, match="at most 256"):
        policies["act"].interface.encode("a" * 257)


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


def edit(path: Path, change) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_a_run_of_lerobot_train_is_found(folders, tmp_path):
    assert pretrained_in(tmp_path) is None
    place = copied(folders["act"], tmp_path / "run/checkpoints/last/pretrained_model")
    for folder in (place, place.parent, tmp_path / "run"):
        assert pretrained_in(folder) == place
    found = find_policy(tmp_path / "run")
    assert isinstance(found, LeRobotPolicy) and found.kind == "act"


def test_names_that_lerobot_was_told_to_change_are_those_of_the_robot(folders, policies, tmp_path):
    """And what the folder holds is not downloaded, although its configuration names where it began."""
    folder = copied(folders["act"], tmp_path / "act")
    edit(folder / "config.json", lambda c: c.update(pretrained_backbone_weights="ResNet18_Weights.IMAGENET1K_V1"))
    renamed = {"observation.images.left": "observation.images.front"}
    edit(folder / PRE, lambda pre: pre["steps"][0]["config"].update(rename_map=renamed))
    policy = LeRobotPolicy.load(folder)
    assert policy.interface.cameras == ("left", "side")
    observation = seen(policies["act"])
    assert torch.equal(asked(policy, observation), asked(policies["act"], observation))


def test_everything_that_does_not_fit_is_one_error(folders, tmp_path):
    folder = copied(folders["act"], tmp_path / "act")

    def features(config) -> None:
        config["input_features"]["observation.images.side"]["shape"] = [3, 32, 48]
        config["input_features"]["observation.environment_state"] = {"type": "ENV", "shape": [3]}
        config["output_features"]["action"]["shape"] = [5]

    edit(folder / "config.json", features)
    file = next(folder.glob("*_normalizer_processor.safetensors"))
    stats = load_file(file)
    del stats["observation.images.front.mean"]
    stats["observation.state.mean"][1] = torch.nan
    stats["observation.state.std"][3] = 0
    save_file(stats, file)
    with pytest.raises(UserError) as told:
        LeRobotFolder.read(folder)
    text = str(told.value)
    assert text.startswith(f"{folder}: 7 problems")
    for line in (
        "pictures of different sizes: observation.images.front (3, 32, 32), observation.images.side (3, 32, 48)",
        "observation.environment_state: the policy needs it",
        "observation.images.front: statistic 'mean' is missing",
        "observation.state[1]: statistic 'mean' is nan",
        "observation.state[3]: has no range to normalise",
        "action: statistic 'mean' has 4 values for 5 dimensions",
        "action: statistic 'std' has 4 values for 5 dimensions",
    ):
        assert line in text, line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors: no such file"),
        (lambda f: (f / PRE).unlink(), "policy_preprocessor.json: no such file; it is saved with a policy since"),
        (lambda f: (f / POST).write_text('{"steps": 3}'), "'steps' must be a list"),
        (lambda f: edit(f / "config.json", lambda c: c.update(type="acting")), "no policy type 'acting'"),
        (lambda f: edit(f / "config.json", lambda c: c.update(wings=2)), "wings"),
        (lambda f: edit(f / "config.json", lambda c: c.update(use_peft=True)), "adapter"),
        (lambda f: edit(f / "config.json", lambda c: c.update(dim_model=32)), "cannot be built or run"),
        (lambda f: edit(f / "config.json", lambda c: c.update(input_features=[])), "input_features must give"),
        (lambda f: edit(f / "config.json", lambda c: c.update(output_features={})), "action: missing among the output"),
        (lambda f: edit(f / PRE, lambda c: c["steps"].pop()), "is to be normalised, but there is no normalizer"),
        (
            lambda f: edit(f / PRE, lambda c: c["steps"][1]["config"].update(task_key="prompt")),
            "prompt: to_batch_processor takes the instruction from this key",
        ),
    ],
)
def test_a_broken_folder_is_told_in_one_line(folders, tmp_path, change, said):
    folder = copied(folders["act"], tmp_path / "act")
    change(folder)
    with pytest.raises(UserError) as told:
        LeRobotPolicy.load(folder)
    assert said in str(told.value)


def test_a_package_that_is_missing_is_named(folders, monkeypatch):
    from lerobot.utils import import_utils

    monkeypatch.setitem(import_utils._require_package_cache, "diffusers", False)
    with pytest.raises(UserError, match=r"'diffusion' needs .* which is missing: 'diffusers' is required"):
        LeRobotPolicy.load(folders["diffusion"])


@pytest.mark.parametrize("kind", ["smolvla", "pi0"])
def test_a_policy_that_reads_language_names_the_tokenizer_that_is_not_there(kind, tmp_path):
    """Their weights cannot be had here: how far the adapter comes is the tokenizer of the folder's preprocessor."""
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies import make_policy_config

    config = make_policy_config(
        kind,
        device="cpu",
        push_to_hub=False,
        input_features={
            "observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, 64, 64)),
            "observation.state": PolicyFeature(FeatureType.STATE, (4,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (4,))},
    )
    config.save_pretrained(tmp_path)
    names = {"observation.state": (4,), "action": (4,)}
    stats = {f"{key}.{moment}": torch.ones(size) for key, size in names.items() for moment in ("mean", "std")}
    save_file(stats, tmp_path / "stats.safetensors")
    save_file({}, tmp_path / "model.safetensors")
    scale = {"features": {}, "norm_map": {"STATE": "MEAN_STD", "ACTION": "MEAN_STD"}}
    step = {"config": scale, "state_file": "stats.safetensors"}
    reader = {"registry_name": "tokenizer_processor", "config": {"tokenizer_name": "nobody/none", "task_key": "task"}}
    pre = [reader, {"registry_name": "normalizer_processor", **step}]
    post = [{"registry_name": "unnormalizer_processor", **step}]
    for name, steps in ((PRE, pre), (POST, post)):
        (tmp_path / name).write_text(json.dumps({"name": name.removesuffix(".json"), "steps": steps}))
    assert LeRobotFolder.read(tmp_path).cameras == {"front": "observation.images.front"}
    with pytest.raises(UserError, match=f"'{kind}' cannot be built or run.*nobody/none"):
        LeRobotPolicy.load(tmp_path)
