"""Our policy as a plug-in of lerobot: found by name, the same actions as ours, saved bit for bit, refused where it does
not fit."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from lerobot.configs import PreTrainedConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies import get_policy_class, make_pre_post_processors
from lerobot_policy_worldmodel.configuration_worldmodel import WorldModelConfig
from lerobot_policy_worldmodel.exported import configuration, export
from lerobot_policy_worldmodel.modeling_worldmodel import WorldModelPolicy
from lerobot_policy_worldmodel.processor_worldmodel import make_worldmodel_pre_post_processors, ranges

from worldmodel import noise
from worldmodel.chunk import Clip
from worldmodel.errors import UserError
from worldmodel.memory import LastFrameConfig
from worldmodel.policies.behaviour_cloning import BehaviourCloning
from worldmodel.policies.flow_policy import PolicyConfig
from worldmodel.policies.lerobot_policy import LeRobotPolicy
from worldmodel.policies.observation import Interface, Observation, Range
from worldmodel.policies.planning import ensembled, plan
from worldmodel.policies.policy import Acting, Policy, find_policy
from worldmodel.rollout import start
from worldmodel.sampler import Euler, Heun, draw

INTERFACE = Interface(
    cameras=("front", "side"),
    size=(32, 32),
    state=Range(("q", "still"), (0.1, 0.7), (0.4, 0.7)),
    action=Range(("x", "y", "grip"), (-0.2, 0.03, -1.0), (0.3, 0.05, -1.0)),
    vocabulary=("go", "home"),
    words=3,
    fps=10.0,
)
SIZES = PolicyConfig(chunk=6, dim=16, depth=2, heads=2, hidden=32, channels=(8, 8), keypoints=4, time_width=8)


HEUN = Heun(steps=2)


def our_policy(sampler: Euler | Heun = HEUN, **acting) -> Policy:
    torch.manual_seed(0)
    model = replace(SIZES, ending=8).build(INTERFACE).eval()  # lerobot gets it without this head
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return Policy(model.requires_grad_(False), Acting(sampler=sampler, execute=2, **acting))


def observations(rows: int, moment: int) -> Observation:
    rng = torch.Generator().manual_seed(moment)
    image = torch.randint(0, 256, (rows, 2, 3, 32, 32), generator=rng, dtype=torch.uint8)
    state = torch.stack((0.1 + 0.3 * torch.rand(rows, generator=rng), torch.full((rows,), 0.7)), 1)
    return Observation(image, state, torch.tensor([INTERFACE.encode("Go home"), INTERFACE.encode("")])[:rows], 6)


def as_given(seen: Observation) -> dict:
    """What lerobot-eval makes of an environment's observation."""
    return {
        "observation.images.front": seen.image[:, 0].float() / 255,
        "observation.images.side": seen.image[:, 1].float() / 255,
        "observation.state": seen.state,
        "task": ["Go home", ""][: seen.batch],
    }


def loaded(folder: Path) -> tuple[WorldModelPolicy, tuple]:
    config = PreTrainedConfig.from_pretrained(folder)
    policy = get_policy_class("worldmodel").from_pretrained(folder, config=config)
    assert isinstance(policy, WorldModelPolicy)
    return policy, make_pre_post_processors(config, str(folder))


@pytest.mark.timeout(600)
def test_lerobot_finds_the_type_in_a_fresh_process():
    """lerobot only logs that a plug-in could not be imported: so its registries are asked."""
    code = (
        "from lerobot.utils.import_utils import register_third_party_plugins as register; register()\n"
        "from lerobot.configs import PreTrainedConfig\n"
        "from lerobot.processor import ProcessorStepRegistry\n"
        "print(PreTrainedConfig.get_choice_class('worldmodel'), ProcessorStepRegistry.get('worldmodel_words'))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=590)
    assert "WorldModelConfig" in found.stdout and "WordsStep" in found.stdout, found.stderr


@pytest.mark.parametrize("sampler", [Euler(steps=3, shift=2.0), Heun(steps=2, guidance=1.5)], ids=str)
def test_an_exported_policy_acts_as_ours(sampler, tmp_path):
    """To rounding in the ranges alone (lerobot writes them as quantiles): 3e-6 of the widest range."""
    ours = our_policy(sampler)
    export(ours, tmp_path / "exported")
    policy, (preprocess, postprocess) = loaded(tmp_path / "exported")
    assert policy.acting == ours.acting
    seeds, chunks = torch.tensor([11, 12]), []
    policy.reset()
    for moment in range(6):
        seen, steps = observations(2, moment), torch.full((2,), moment - moment % 2)
        if moment % 2 == 0:
            chunks.append(ours.model.in_units(plan(ours.model, sampler, seen, seeds, steps)))
        state = replace(start(ours.model, LastFrameConfig(), seeds), frame=steps)
        eps = draw(ours.model, state, 6, 0)
        action = postprocess(policy.select_action(preprocess(as_given(seen)), noise=eps))
        torch.testing.assert_close(action, chunks[-1][:, moment % 2], rtol=0, atol=3e-6)
    assert (chunks[0][0] - chunks[0][1]).abs().max() > 1e-3  # or the test would see nothing


def test_through_our_own_rollout_it_acts_as_ours_too(tmp_path):
    ours = our_policy()
    export(ours, tmp_path / "exported")
    found = find_policy(tmp_path / "exported")
    assert isinstance(found, LeRobotPolicy)
    assert found.interface.misfits(INTERFACE.state.names, INTERFACE.action.names, 10.0) == []
    assert found.interface.misfits(INTERFACE.state.names, ("x", "y", "z"), 20.0) == [
        "action: the policy has x, y, grip, the robot x, y, z",
        "fps: the policy has 10.0, the robot 20.0",
    ]
    seen = observations(1, 0)
    words = torch.tensor([found.interface.encode("Go home")])
    made = plan(found.model, found.acting.sampler, replace(seen, words=words), torch.tensor([3]), torch.tensor([8]))
    torch.manual_seed(int(noise.row_seed(3, torch.tensor([8]))))
    seed = torch.randint(0, 2**62, (1,))
    wanted = ours.model.in_units(plan(ours.model, HEUN, seen, seed, torch.tensor([0])))
    torch.testing.assert_close(made, wanted, rtol=0, atol=3e-6)
    assert (found.acting.execute, found.model.chunk) == (2, 6)


def test_ensembling_is_ours(tmp_path):
    ours = our_policy(Euler(steps=2), ensemble=0.3)
    export(ours, tmp_path / "exported")
    policy, (preprocess, postprocess) = loaded(tmp_path / "exported")
    seeds, chunks = torch.tensor([11]), []
    for moment in range(9):
        seen, steps = observations(1, moment), torch.tensor([moment])
        state = replace(start(ours.model, LastFrameConfig(), seeds), frame=steps)
        if moment % 2 == 0:
            made = plan(ours.model, ours.acting.sampler, seen, seeds, steps)
            chunks.append((moment, ours.model.in_units(made)[0]))
        eps = draw(ours.model, state, 6, 0)
        action = postprocess(policy.select_action(preprocess(as_given(seen)), noise=eps))
        torch.testing.assert_close(action[0], ensembled(chunks, moment, 0.3), rtol=0, atol=3e-6)
    assert len(policy._chunks) == 3  # older ones have ended


def test_a_saved_folder_is_the_same_bit_for_bit(tmp_path):
    export(our_policy(ensemble=0.25), tmp_path / "first")
    policy, pipelines = loaded(tmp_path / "first")
    policy.save_pretrained(tmp_path / "second")
    for pipeline in pipelines:
        pipeline.save_pretrained(tmp_path / "second")
    names = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "second").iterdir()) and len(names) == 6
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name
    ours, theirs = our_policy().model.state_dict(), policy.model.state_dict()
    assert ours.keys() - theirs.keys() == {f"ending.{layer}.{part}" for layer in (0, 2) for part in ("weight", "bias")}
    for name, tensor in theirs.items():
        assert torch.equal(tensor, ours[name])
    with pytest.raises(UserError, match="exists already"):
        export(our_policy(), tmp_path / "first")


def test_noise_differs_between_episodes_and_follows_torchs_seed(tmp_path):
    export(our_policy(), tmp_path / "exported")
    policy, (preprocess, _) = loaded(tmp_path / "exported")
    batch = preprocess(as_given(observations(2, 0)))

    def episode() -> torch.Tensor:
        policy.reset()
        return policy.select_action(dict(batch))

    torch.manual_seed(1)
    first, second = episode(), episode()
    torch.manual_seed(1)
    assert torch.equal(first, episode()) and not torch.equal(first, second)


def dataset_meta(**changed) -> SimpleNamespace:
    features = {
        "observation.images.front": {"dtype": "video", "shape": (32, 32, 3), "names": ["height", "width", "channels"]},
        "observation.images.side": {"dtype": "video", "shape": (32, 32, 3), "names": ["height", "width", "channels"]},
        "observation.state": {"dtype": "float32", "shape": (2,), "names": ["q", "still"]},
        "action": {"dtype": "float32", "shape": (3,), "names": {"motors": ["x", "y", "grip"]}},
    }
    stats = {
        "observation.state": {"min": [0.0, 0.7], "max": [1.0, 0.7], "q01": [0.1, 0.7], "q99": [0.4, 0.7]},
        "action": {
            "min": [-1.0, 0.0, -1.0],
            "max": [1.0, 0.1, -1.0],
            "q01": [-0.2, 0.05, -1.0],
            "q99": [0.3, 0.05, -1.0],
        },
    }
    tasks = pd.DataFrame({"task_index": [0, 1]}, index=pd.Index(["Go home", "go"], name="task"))
    return SimpleNamespace(**{"features": features, "stats": stats, "tasks": tasks, "fps": 10, **changed})


def fresh(meta: SimpleNamespace, **fields) -> tuple[WorldModelPolicy, tuple]:
    """As lerobot-train does it."""
    from lerobot.policies import make_policy

    sizes = {"chunk_size": 6, "n_action_steps": 2, "dim": 16, "depth": 1, "heads": 2, "hidden": 32, "keypoints": 4}
    config = WorldModelConfig(device="cpu", push_to_hub=False, channels=[8, 8], **{**sizes, **fields})
    policy = make_policy(config, ds_meta=meta)
    assert isinstance(policy, WorldModelPolicy)
    return policy, make_pre_post_processors(config, dataset_stats=meta.stats)


def test_a_new_policy_takes_ranges_and_words_from_the_dataset():
    policy, (preprocess, postprocess) = fresh(dataset_meta(), constant=["still", "grip"])
    config = policy.config
    assert (config.vocabulary, config.words, config.fps) == (["go", "home"], 2, 10.0)
    assert (config.state_names, config.action_names) == (["q", "still"], ["x", "y", "grip"])
    state, action = torch.tensor([[0.1, 0.7], [0.4, 0.9]]), torch.tensor([[-0.2, 0.0, -1.0], [0.3, 0.1, -0.5]])
    batch = preprocess({**as_given(observations(2, 0)), "observation.state": state, "action": action})
    torch.testing.assert_close(batch["observation.state"], torch.tensor([[-1.0, 0.0], [1.0, 0.2]]))
    # y has the same quantiles: the whole range; grip has none: it keeps its unit
    torch.testing.assert_close(batch["action"], torch.tensor([[-1.0, -1.0, 0.0], [1.0, 1.0, 0.5]]))
    torch.testing.assert_close(postprocess(batch["action"]), action)
    assert batch["observation.language.tokens"].tolist() == [[1, 2], [0, 0]]


def test_the_loss_is_that_of_our_objective(monkeypatch):
    policy, (preprocess, _) = fresh(dataset_meta(), constant=["still", "grip"], prefix=3, time_shift=2.0)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    seen = observations(2, 0)
    action = 0.1 * torch.rand(2, 6, 3, generator=torch.Generator().manual_seed(0))
    batch = preprocess({**as_given(seen), "action": action, "action_is_pad": torch.zeros(2, 6, dtype=torch.bool)})
    index = torch.tensor([5, 9])
    monkeypatch.setattr(torch, "randint", lambda *args: index)
    loss, logged = policy.forward(batch)
    scaled = replace(seen, state=batch["observation.state"], words=batch["observation.language.tokens"])
    ours = BehaviourCloning(prefix=3, shift=2.0).build(policy.model, 6, 0)
    assert torch.equal(loss, ours.loss(Clip(batch["action"], scaled, index), 0)) and logged["velocity_error"] > 0
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in policy.parameters())


def test_statistics_that_cannot_be_used_are_one_error():
    config = configuration(our_policy())
    config.constant = ["grip"]
    stats = dataset_meta().stats
    del stats["observation.state"]["q99"]
    stats["action"] |= {"q01": [np.nan, 0.0, -1.0], "max": [1.0, 1.0]}
    with pytest.raises(UserError) as told:
        ranges(config, stats)
    assert str(told.value) == (
        "worldmodel: 3 problems with the statistics: statistic 'observation.state/q99' is missing; "
        "statistic 'action/q01' of 'x' is nan; statistic 'action/max' has 2 values for 3 dimensions"
    )
    stats = dataset_meta().stats
    with pytest.raises(
        UserError, match=r"'observation\.state' dimension 'still' is constant at 0\.7: name it in constant"
    ):
        make_worldmodel_pre_post_processors(config, stats)


def test_features_that_it_cannot_read_are_one_error():
    features = dataset_meta().features
    features["observation.images.side"]["shape"] = (32, 48, 1)
    features["observation.environment_state"] = {"dtype": "float32", "shape": (3,), "names": None}
    del features["observation.state"]
    with pytest.raises(UserError) as told:
        fresh(dataset_meta(features=features))
    assert str(told.value) == (
        "worldmodel: 4 problems with the features: pictures of different sizes: observation.images.front (3, 32, 32), "
        "observation.images.side (1, 32, 48); observation.images.side has 1 channels, not 3; no observation.state; "
        "observation.environment_state: this policy does not read it"
    )


def test_an_observation_without_its_keys_is_one_error(tmp_path):
    export(our_policy(), tmp_path / "exported")
    policy, (preprocess, _) = loaded(tmp_path / "exported")
    given = as_given(observations(1, 0))
    del given["observation.images.side"], given["observation.state"]
    given["observation.images.front"] = torch.zeros(1, 3, 16, 16)
    with pytest.raises(UserError) as told:
        policy.select_action(preprocess(given))
    assert str(told.value) == (
        "worldmodel: 3 problems with an observation: observation.images.side is missing; observation.state is missing; "
        "observation.images.front is (3, 16, 16), the policy sees (3, 32, 32)"
    )
    with pytest.raises(UserError, match="the policy does not know fly"):
        preprocess({**as_given(observations(1, 0)), "task": ["fly home"]})


def test_going_on_with_other_data_is_refused(tmp_path):
    export(our_policy(), tmp_path / "exported")
    config = PreTrainedConfig.from_pretrained(tmp_path / "exported")
    assert isinstance(config, WorldModelConfig)
    config.pretrained_path = tmp_path / "exported"
    config.learn_language(["go home"], 10.0)
    with pytest.raises(UserError, match="it does not know fly; it reads 3 words, not 4; it acts at 10 fps, not 20"):
        config.learn_language(["go fly go home"], 20.0)
    with pytest.raises(UserError, match=r"observation\.state of the dataset has a, b, the policy q, still"):
        config.set_dataset_feature_metadata({"observation.state": {"names": ["a", "b"]}})
    config.set_dataset_feature_metadata({"observation.state": {"names": None}})
    assert config.state_names == ["q", "still"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"n_obs_steps": 2}, "n_obs_steps"),
        ({"sampler": "rk4"}, "no sampler 'rk4'; there are euler, heun"),
        ({"n_action_steps": 17}, r"execute must be in \[1, 16\]"),
        ({"dim": 30}, "multiple of heads"),
        ({"time_shift": 0.0}, "shift"),
    ],
)
def test_numbers_out_of_range_are_told(fields, said):
    with pytest.raises(UserError, match=said):
        WorldModelConfig(device="cpu", **fields)


def test_features_name_their_dimensions():
    config = WorldModelConfig(
        device="cpu",
        input_features={"observation.state": PolicyFeature(FeatureType.STATE, (2,))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (2,))},
        action_names=["x", "y"],
    )
    assert config.dimensions("action") == ("x", "y")
    assert config.dimensions("observation.state") == ("observation.state[0]", "observation.state[1]")
