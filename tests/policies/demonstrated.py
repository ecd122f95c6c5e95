"""A world small enough to learn in seconds: a bright spot in two pictures, and a hand that goes to it."""

from pathlib import Path

import numpy as np

from worldmodel.datasets.lerobot_writer import Episode, EpisodeSchema, EpisodeWriter

SIZE, FPS = 32, 20
ACTIONS, STATES = ("target_x", "target_y", "target_z", "grip"), ("hand_x", "hand_y", "hand_z", "opening")


def picture(spot: np.ndarray) -> np.ndarray:
    """A spot at (x, y) in [-1, 1] on a dark ground."""
    frame = np.full((SIZE, SIZE, 3), 30, np.uint8)
    column, row = ((spot + 1) / 2 * (SIZE - 7)).round().astype(int)
    frame[row : row + 6, column : column + 6] = (220, 40, 40)
    return frame


def episode(seed: int, length: int = 12, task: str = "go there") -> Episode:
    """The hand nears the target 0.3 * (x, y, x): a quarter of the way per frame."""
    rng = np.random.default_rng(seed)
    spot = rng.uniform(-1, 1, 2)
    target = 0.3 * np.array([spot[0], spot[1], spot[0]])
    hand = rng.uniform(-0.3, 0.3, 3)
    states = []
    for _ in range(length):
        states.append([*hand, 1.0 - 0.02 * len(states)])
        hand = hand + (target - hand) / 4
    frames = np.repeat(picture(spot)[None], length, 0)
    grip = np.where(np.arange(length) < length // 2, -1.0, 1.0)
    action = np.concatenate((np.repeat(target[None], length, 0), grip[:, None]), 1)
    video = {"front": frames, "side": frames[:, ::-1, ::-1].copy()}
    return Episode(task, video, np.array(states, np.float32), action.astype(np.float32), {})


def write_dataset(
    folder: Path, episodes: int = 8, task: str = "go there", fps: int = FPS, cameras=("front", "side")
) -> Path:
    sizes = dict.fromkeys(cameras, (SIZE, SIZE))
    with EpisodeWriter(folder, EpisodeSchema(fps, sizes, STATES, ACTIONS)) as writer:
        for seed in range(episodes):
            made = episode(seed, task=task)
            video = dict(zip(cameras, made.video.values(), strict=False))
            writer.write(Episode(made.task, video, made.state, made.action, {}))
    return folder
