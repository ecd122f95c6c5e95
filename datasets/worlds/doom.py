"""Doom through ViZDoom: textured rooms (``doom``) and the first map of Freedoom 2 (``doom/freedoom``).

First person at 24 frames per second of two engine tics each; no weapon, no status bar, no monsters, no death. The field
of view is 90 degrees both ways.
"""

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import gymnasium
import numpy as np
import vizdoom
from numpy.typing import NDArray

from worldmodel.datasets.worlds.base import Action, Observation, World, WorldOptions, WorldSpec
from worldmodel.datasets.worlds.explorer import Explorer
from worldmodel.datasets.worlds.revisitor import Revisitor
from worldmodel.errors import UserError

FPS = 24
TICS = 2  # engine tics per frame
MAX_TURN = 10.0  # degrees per frame
FORWARD = 16.0  # engine movement units at forward = 1; top speed about 9 map units per frame
STRAFE = 13.0
WIDE_FOV = math.degrees(2 * math.atan(4 / 3))  # of the 4:3 screen, so that its square middle sees 90 degrees
BEAMS = 32  # horizontal directions of "clearance"

UNITS_PER_METRE = 32.0
DEPTH_STEP = 5.35 / UNITS_PER_METRE  # metres per count of ViZDoom's 8-bit depth buffer
DEPTH_START = 9 / UNITS_PER_METRE  # metres at count 0; both fitted to a wall at 28 distances from 0.9 to 18 metres

# Open spots of the Freedoom map, x and y in map units; it has one start of its own and doors that stay shut.
_FREEDOOM_PLACES = (
    *((-100, -150), (150, -150), (450, -100), (330, 180), (650, -160), (1000, -200), (1200, 200), (850, 200)),
    *((1000, -430), (1000, -700), (1400, -600), (1300, -900), (1450, -1000), (1700, -450), (1650, -160), (1950, -450)),
    *((1950, -150), (1950, -750), (0, -1100), (450, -1100), (900, -1000), (100, -1450), (0, -1400), (1090, 600)),
    *((1100, 1150), (900, 900)),
)

_SCREENS = {  # height of a 4:3 screen, from which the square middle is cut
    192: vizdoom.ScreenResolution.RES_256X192,
    384: vizdoom.ScreenResolution.RES_512X384,
}


def open_world(variant: str, options: WorldOptions) -> "Doom":
    """``doom`` (variant "") is ViZDoom's my_way_home; ``doom/freedoom`` is map01 of Freedoom 2."""
    if variant not in ("", "freedoom"):
        raise UserError(f"unknown world 'doom/{variant}': choose doom or doom/freedoom")
    if options.camera not in (None, "first_person"):
        raise UserError(f"doom has one camera, first_person, not {options.camera!r}")
    if options.policy not in (None, Explorer.name, Revisitor.name):
        raise UserError(f"doom has the policies {Explorer.name} and {Revisitor.name}, not {options.policy!r}")
    if not 16 <= options.size <= max(_SCREENS):
        raise UserError(f"doom draws pictures of 16 to {max(_SCREENS)} pixels, not {options.size}")
    doom = Doom(freedoom=variant == "freedoom", size=options.size, depth=options.depth)
    if options.policy == Revisitor.name:
        doom.behaviour = Revisitor(Explorer(MAX_TURN, beams=BEAMS), MAX_TURN)
    return doom


class Doom(World):
    """ViZDoom as a gymnasium environment.

    Action, float32 [3]: ``turn`` degrees per frame in [-10, 10], positive to the LEFT (counter-clockwise, so that the
    angle of the pose grows by exactly ``turn``); ``forward`` in [-1, 1]; ``strafe`` in [-1, 1], positive to the LEFT.
    Forward and strafe push the body, which keeps some momentum: from rest, full forward reaches 90 % of its top
    speed in about ten frames.

    Observation: ``image`` uint8 [size, size, 3]; ``state`` float32 [4] = x, y (map units, 32 of them about a metre),
    angle (degrees in [0, 360), 0 = +x, counter-clockwise), pitch (degrees); ``clearance`` float32 [32], how far the
    eye-level view is free in 32 directions from left (+45 degrees) to right (-45), in counts of the depth buffer (2
    when touching a wall), for the behaviour; on request ``depth`` float32 [size, size], metres along the viewing axis.
    ViZDoom's depth comes in steps of 0.17 m and, for pictures of up to 96 pixels, ends at 17 m.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012 (as gymnasium declares it)

    def __init__(self, freedoom: bool = False, size: int = 64, depth: bool = False) -> None:
        self.facts = WorldSpec(
            name="doom/freedoom" if freedoom else "doom",
            task="explore a Freedoom map" if freedoom else "explore the rooms",
            fps=FPS,
            action_names=("turn", "forward", "strafe"),
            state_names=("x", "y", "angle", "pitch"),
            camera="first_person",
            height=size,
            width=size,
        )
        self.behaviour = Explorer(MAX_TURN, beams=BEAMS)
        self.render_mode = "rgb_array"
        self._depth = depth
        self._size = size
        self._freedoom = freedoom
        self._top = np.array([MAX_TURN, 1.0, 1.0], np.float32)
        self.action_space = gymnasium.spaces.Box(-self._top, self._top, dtype=np.float32)
        spaces: dict[str, gymnasium.Space[Any]] = {
            "image": gymnasium.spaces.Box(0, 255, (size, size, 3), np.uint8),
            "state": gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32),
            "clearance": gymnasium.spaces.Box(0, 255, (BEAMS,), np.float32),
        }
        if depth:
            spaces["depth"] = gymnasium.spaces.Box(0, 43, (size, size), np.float32)
        self.observation_space = gymnasium.spaces.Dict(spaces)  # pyright: ignore[reportAttributeAccessIssue]
        self._scratch = tempfile.TemporaryDirectory(prefix="doom-")
        self._game = _start_game(freedoom, size, Path(self._scratch.name))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        """Starts an episode at a place and angle drawn from ``seed``."""
        super().reset(seed=seed)
        self._game.set_seed(int(self.np_random.integers(2**31)) if seed is None else seed)
        self._game.new_episode()
        self._game.send_game_command(f"fov {WIDE_FOV:.4f}")
        if self._freedoom:
            self._game.send_game_command("god")
            x, y = _FREEDOOM_PLACES[self.np_random.integers(len(_FREEDOOM_PLACES))]
            self._game.send_game_command(f"warp {x} {y}")
            turn = self.np_random.uniform(-180, 180)
        else:
            self._game.send_game_command("remove GreenArmor")  # the goal, which would end the episode
            turn = 0.0
        self._game.make_action([turn, 0.0, 0.0], 1)
        self._observation = self._observe()
        return self._observation, {}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict]:
        """One frame. Terminated, with the last observation again, in the unlikely case that the map is left."""
        turn, forward, strafe = np.clip(action, self._top * -1, self._top).astype(float)
        self._game.make_action([-turn / TICS, forward * FORWARD, -strafe * STRAFE], TICS)
        ended = self._game.is_episode_finished()
        if not ended:
            self._observation = self._observe()
        return self._observation, 0.0, ended, False, {}

    def render(self) -> NDArray[np.uint8]:
        return np.asarray(self._observation["image"], np.uint8)

    def close(self) -> None:
        self._game.close()
        self._scratch.cleanup()

    def _observe(self) -> Observation:
        state = self._game.get_state()
        assert state is not None and state.depth_buffer is not None and state.game_variables is not None
        depth = _square(state.depth_buffer)
        middle = len(depth) // 2
        near = depth[middle - 2 : middle + 2].min(axis=0).reshape(BEAMS, -1).min(axis=1)
        observation: Observation = {
            "image": self._shrink(_square(state.screen_buffer)),
            "state": state.game_variables.astype(np.float32),
            "clearance": near.astype(np.float32),
        }
        if self._depth:
            observation["depth"] = self._shrink(_metres(depth))
        return observation

    def _shrink(self, picture: NDArray[Any]) -> NDArray[Any]:
        return cv2.resize(picture, (self._size, self._size), interpolation=cv2.INTER_AREA)


def _metres(depth: NDArray[np.uint8]) -> NDArray[np.float32]:
    return depth.astype(np.float32) * np.float32(DEPTH_STEP) + np.float32(DEPTH_START)


def _square(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The middle [h, h, ...] of a picture [h, w, ...]."""
    height, width = picture.shape[:2]
    left = (width - height) // 2
    return np.ascontiguousarray(picture[:, left : left + height])


def _start_game(freedoom: bool, size: int, scratch: Path) -> vizdoom.DoomGame:
    game = vizdoom.DoomGame()
    if freedoom:
        game.set_doom_game_path(str(Path(vizdoom.__file__).parent / "freedoom2.wad"))
        game.set_game_args("-nomonsters")
    else:
        game.set_doom_scenario_path(str(Path(vizdoom.scenarios_path) / "my_way_home.wad"))
    game.set_doom_map("map01")
    game.set_doom_skill(1)
    height = min(height for height in _SCREENS if height >= min(2 * size, max(_SCREENS)))
    game.set_screen_resolution(_SCREENS[height])
    game.set_screen_format(vizdoom.ScreenFormat.RGB24)
    game.set_depth_buffer_enabled(True)
    for hide in (
        game.set_render_hud,
        game.set_render_weapon,
        game.set_render_crosshair,
        game.set_render_messages,
        game.set_render_screen_flashes,
        game.set_render_decals,
        game.set_render_particles,
        game.set_window_visible,
        game.set_sound_enabled,
    ):
        hide(False)
    button, variable = vizdoom.Button, vizdoom.GameVariable
    game.set_available_buttons(
        [button.TURN_LEFT_RIGHT_DELTA, button.MOVE_FORWARD_BACKWARD_DELTA, button.MOVE_LEFT_RIGHT_DELTA]
    )
    game.set_available_game_variables([variable.POSITION_X, variable.POSITION_Y, variable.ANGLE, variable.PITCH])
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_episode_timeout(0)
    game.set_episode_start_time(10)
    game.set_doom_config_path(str(scratch / "_vizdoom.ini"))
    with _working_directory(scratch):  # ViZDoom leaves a folder _vizdoom/ where it starts
        game.init()
    return game


@contextmanager
def _working_directory(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
