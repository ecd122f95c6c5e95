"""The robot as somebody sees it who stands beside it: a simulated robot that tells of every step, and can be drawn."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldmodel.datasets.worlds.base import Action, Observation
from worldmodel.policies.episodes import check_interface
from worldmodel.policies.observation import Interface
from worldmodel.policies.robot import HandRobot

WIDTH, HEIGHT = 480, 360
LOOKED_AT, DISTANCE, AZIMUTH, ELEVATION = (0.0, 0.66, 0.2), 1.2, -52.0, -22.0  # metres and degrees
TOLD, READ = (1.0, 0.71, 0.33, 0.75), (0.42, 0.78, 1.0, 0.75)  # colours of the marks
MARK = 0.016  # metres, their radius

Told = Callable[["ShownRobot"], None]
Opens = Callable[[str, Interface, Told], "ShownRobot"]


class ShownRobot(HandRobot):
    """A robot for policies of an interface. told: called at the beginning of an episode and after every step.

    moment: control steps since the episode began. target, reading: where the hand was last told to be, and where
    proprioception reports it, in metres; the target is None before the first command.
    """

    def __init__(self, task: str, interface: Interface, told: Told) -> None:
        import mujoco

        super().__init__(check_interface(task, interface), cameras=interface.cameras, size=interface.size[0])
        self._told = told
        self.moment, self.target = 0, None
        self.reading = np.zeros(3)
        self._beside = mujoco.Renderer(self._env.model, HEIGHT, WIDTH)
        self._eye = mujoco.MjvCamera()  # pyright: ignore[reportAttributeAccessIssue]
        self._eye.type = mujoco.mjtCamera.mjCAMERA_FREE  # pyright: ignore[reportAttributeAccessIssue]
        self._eye.lookat[:] = LOOKED_AT
        self._eye.distance, self._eye.azimuth, self._eye.elevation = DISTANCE, AZIMUTH, ELEVATION

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        observation, info = super().reset(seed=seed)
        self.moment, self.target, self.reading = 0, None, observation["state"][:3]
        self._told(self)
        return observation, info

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict]:
        made = super().step(action)
        self.moment, self.target, self.reading = self.moment + 1, np.asarray(action[:3]), made[0]["state"][:3]
        self._told(self)
        return made

    def picture(self) -> NDArray[np.uint8]:
        """The robot now, uint8 [HEIGHT, WIDTH, 3]: a mark where its hand was told to be, another where it reads it."""
        import mujoco

        flags = mujoco.mjtRndFlag  # pyright: ignore[reportAttributeAccessIssue]
        self._beside.update_scene(self._env.data, camera=self._eye)
        scene = self._beside.scene
        scene.flags[flags.mjRND_SHADOW] = 0
        scene.flags[flags.mjRND_REFLECTION] = 0
        for place, colour in ((self.target, TOLD), (self.reading, READ)):
            if place is not None and scene.ngeom < scene.maxgeom:
                mujoco.mjv_initGeom(  # pyright: ignore[reportAttributeAccessIssue]
                    scene.geoms[scene.ngeom], mujoco.mjtGeom.mjGEOM_SPHERE,  # pyright: ignore[reportAttributeAccessIssue]
                    np.full(3, MARK), np.asarray(place, np.float64), np.eye(3).ravel(), np.array(colour, np.float32),
                )  # fmt: skip
                scene.ngeom += 1
        return self._beside.render()

    def close(self) -> None:
        self._beside.close()
        super().close()
