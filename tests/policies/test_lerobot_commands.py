"""lerobot's own programs run our plug-in unchanged: train on a dataset of ours, go on, evaluate on an environment."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from lerobot_policy_worldmodel.environment_worldmodel import WorldModelRobotConfig
from lerobot_trained import train_lerobot
from safetensors.torch import load_file
from test_lerobot_plugin import our_policy

from worldmodel.cli import main
from worldmodel.datasets.lerobot import LeRobotRecordings
from worldmodel.datasets.lerobot_writer import Episode, EpisodeSchema, EpisodeWriter
from worldmodel.errors import UserError
from worldmodel.policies.lerobot_export import export_to_lerobot
from worldmodel.policies.lerobot_policy import LeRobotPolicy
from worldmodel.policies.policy import find_policy
from worldmodel.policies.robot import HandRobot
from worldmodel.policies.shifts import parse_shift

TINY = [
    "--policy.type=worldmodel",
    "--policy.device=cpu",
    "--policy.push_to_hub=false",
    "--policy.dim=16",
    "--policy.depth=1",
    "--policy.heads=2",
    "--policy.hidden=32",
    "--policy.channels=[8,8]",
    "--policy.keypoints=4",
    "--policy.steps=2",
]
TRAINING = ["--batch_size=4", "--num_workers=0", "--log_freq=2", "--wandb.enable=false", "--dataset.video_backend=pyav"]


def run(name: str, *options: str, where: Path) -> str:
    """A program of lerobot in a process of its own; what it logs."""
    program = Path(sys.executable).with_name(name)
    done = subprocess.run([program, *options], cwd=where, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr + done.stdout


def test_our_export_command_writes_what_lerobot_reads(tmp_path, capsys):
    our_policy().save(tmp_path / "run/model")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--lerobot"]) == 0
    assert LeRobotPolicy.load(tmp_path / "out").kind == "worldmodel"
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--lerobot"]) == 2
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "new"), "--lerobot", "--diffusers"]) == 2
    assert "exists already" in (told := capsys.readouterr().err) and "either --diffusers or --lerobot" in told


def test_without_the_plug_in_export_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lerobot_policy_worldmodel.exported", None)
    with pytest.raises(Exception, match="pip install -e policies/lerobot_plugin"):
        export_to_lerobot(tmp_path, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.needs("pusht")
def test_lerobot_trains_goes_on_and_evaluates(tmp_path):
    """On what `collect` has recorded of PushT, its state cut to the part that lerobot's environment gives."""
    assert (
        main(["collect", "pusht", "--episodes", "3", "--frames", "20", "--size", "96", "--out", f"{tmp_path}/raw"]) == 0
    )
    data = cut(tmp_path / "raw", tmp_path / "data")
    dataset = ("--dataset.repo_id=local/pusht", f"--dataset.root={data}")
    run("lerobot-train", *TINY, *dataset, *TRAINING, "--steps=6", "--save_freq=3", "--output_dir=out", where=tmp_path)
    made = tmp_path / "out/checkpoints"
    last = made / "last/pretrained_model"
    assert sorted(path.name for path in made.iterdir()) == ["000003", "000006", "last"]
    config = json.loads((last / "config.json").read_text())
    assert config["action_names"] == ["x", "y"] and config["fps"] == 10 and "block" in config["vocabulary"]

    # A run that stopped at step 3 goes on (with other noise: lerobot draws a number more when it opens the data again).
    weights = made / "000006/pretrained_model/model.safetensors"
    before = load_file(weights)
    shutil.rmtree(made / "000006")
    (made / "last").unlink()
    (made / "last").symlink_to("000003")
    run("lerobot-train", f"--config_path={last / 'train_config.json'}", "--resume=true", where=tmp_path)
    for name, tensor in load_file(weights).items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=2e-3)  # 3 steps at a rate of at most 5e-5

    # Fine-tuning of what our own loop could have made: the processors of the folder, the statistics of the data.
    tuned = (f"--policy.path={last}", "--policy.push_to_hub=false")
    run("lerobot-train", *tuned, *dataset, *TRAINING, "--steps=2", "--output_dir=tuned", where=tmp_path)

    options = (
        f"--policy.path={last} --env.type=pusht --env.episode_length=12 "
        "--eval.n_episodes=2 --eval.batch_size=2 --eval.use_async_envs=false --policy.device=cpu --output_dir=eval"
    ).split()
    rename = '--rename_map={"observation.image": "observation.images.top"}'
    run("lerobot-eval", *options, rename, where=tmp_path)
    info = json.loads((tmp_path / "eval/eval_info.json").read_text())
    assert info["overall"]["n_episodes"] == 2 and np.isfinite(info["overall"]["avg_sum_reward"])
    policy = find_policy(tmp_path / "tuned")
    assert isinstance(policy, LeRobotPolicy)
    assert (policy.model.chunk, policy.acting.execute) == (16, 8)
    assert torch.isfinite(policy.model.make(policy.model._blank(), torch.tensor([1]), torch.tensor([0]))).all()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.needs("metaworld")
def test_act_trained_on_our_demonstrations_is_evaluated_on_the_shifted_robot(tmp_path, capsys):
    data, act = tmp_path / "reach", tmp_path / "act"
    collect = ["collect", "robot/reach", "--policy", "jolted", "--episodes", "2", "--frames", "30", "--size", "32"]
    assert main([*collect, "--out", str(data)]) == 0
    train_lerobot("act", data, act)
    rows = []
    for parallel in ("1", "4"):
        todo = [
            "--tasks",
            "reach",
            "--shifts",
            "nominal",
            "encoder-offset:0.03,0,0",
            "--episodes",
            "2",
            "--horizon",
            "10",
        ]
        made = tmp_path / parallel
        assert main(["evaluate", "policy", str(act), *todo, "--parallel", parallel, "--out", str(made)]) == 0
        rows.append([json.loads(path.read_text())["curves"]["rows"] for path in made.rglob("*.json")])
    assert rows[0] == rows[1] and len(rows[0][0]) == 4
    assert len({row["border_jerk"] for row in rows[0][0]}) == 4
    assert (
        main(
            [
                "evaluate",
                "policy",
                str(act),
                "--tasks",
                "reach",
                "--episodes",
                "1",
                "--delay",
                "1",
                "--chunking",
                "prefix",
            ]
        )
        == 2
    )
    assert "by naive only" in capsys.readouterr().err


@pytest.mark.needs("metaworld")
def test_our_robot_is_an_environment_of_lerobot():
    """The same pictures, states, rewards and ends as `evaluate policy` has, seed by seed; frozen after its end."""
    from lerobot.envs import make_env
    from lerobot.envs.utils import NEW_ROLLOUT_OPTION, env_to_policy_features

    cfg = WorldModelRobotConfig(task="reach", size=32, episode_length=6, shift="encoder-offset:0.03,0,0")
    assert env_to_policy_features(cfg)["observation.images.corner"].shape == (3, 32, 32)
    (env,) = (each for suite in make_env(cfg, n_envs=2).values() for each in suite.values())
    robots = [HandRobot("reach", shift=parse_shift(cfg.shift), size=32) for _ in range(2)]
    seen, _ = env.reset(seed=[4, 5], options={NEW_ROLLOUT_OPTION: True})
    ours = [robot.reset(seed=seed)[0] for seed, robot in zip((4, 5), robots, strict=True)]
    rng = np.random.default_rng(0)
    for step in range(6):
        for row, robot in enumerate(robots):
            np.testing.assert_array_equal(seen["agent_pos"][row], ours[row]["state"])
            for camera, picture in robot.look().items():
                np.testing.assert_array_equal(seen["pixels"][camera][row], picture)
        action = rng.uniform((-0.2, 0.5, 0.05, -1), (0.2, 0.8, 0.3, 1), (2, 4)).astype(np.float32)
        seen, reward, _, truncated, _ = env.step(action)
        steps = [robot.step(each) for robot, each in zip(robots, action, strict=True)]
        ours = [each[0] for each in steps]
        np.testing.assert_array_equal(reward, [each[1] for each in steps])
        assert truncated.tolist() == [step == 5] * 2
    assert env.call("task_description") == ("reach", "reach") and env.call("_max_episode_steps") == (6, 6)
    env.close()
    for robot in robots:
        robot.close()
    for wrong, said in (({"episode_length": 501}, "episode_length"), ({"shift": "fast:1"}, "no shift 'fast'")):
        with pytest.raises(UserError, match=said):
            WorldModelRobotConfig(**wrong)


def cut(source: Path, out: Path) -> Path:
    """The same episodes with the first two dimensions of the state."""
    data = LeRobotRecordings.open(source)
    schema = EpisodeSchema(round(data.fps), dict(data.cameras), data.state_names[:2], data.action_names)
    with EpisodeWriter(out, schema) as writer:
        for episode in data.episodes:
            video = {camera: np.stack(list(data.frames(episode, camera))) for camera in data.cameras}
            state = data.states(episode)[:, :2].astype(np.float32)
            writer.write(Episode(data.task(episode), video, state, data.actions(episode), {}))
    return out
