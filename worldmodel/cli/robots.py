"""The robot demo, which runs other commands to make what it shows."""

from pathlib import Path

from worldmodel.cli import main
from worldmodel.cli.models import CONFIGS
from worldmodel.errors import UserError


def robot_demo(
    checkpoint: Path | None = None,
    encoder: Path | None = None,
    task: str = "button-press",
    out: Path = Path("runs/robot_demo"),
    quick: bool = False,
    trials: int = 6,
    horizon: int = 200,
    seed: int = 1_000_000,
    port: int = 8000,
    host: str = "127.0.0.1",
    token: str | None = None,
    max_viewers: int = 8,
    open_browser: bool = False,
) -> int:
    """A policy on a simulated robot, live in the browser: break the robot, and watch the policy correct itself.

    Example: worldmodel robot-demo demos/models/button_press --encoder demos/models/button_press_context

    Without a checkpoint, policy and context encoder are made first, in --out: demonstrations by Meta-World's script,
    the policy, its trials on broken robots, the encoder; what was stopped goes on with the next call. --quick makes it
    in minutes and far too little of it: to see the page. --trials: of a round, after its first one. --horizon: control
    steps of a trial. Any --host that is not loopback needs a --token.
    """
    from worldmodel.policies.demo.command import show_robot
    from worldmodel.policies.demo.making import QUICK, Effort, Made, make
    from worldmodel.policies.demo.show import Plan

    plan = Plan(task=task.removesuffix("-v3"), horizon=horizon, trials=trials, seed=seed, viewers=max_viewers)
    plan.check()
    if checkpoint is None:
        if encoder is not None:
            raise UserError("--encoder: a context encoder belongs to a policy, give its folder first")
        if not CONFIGS.is_dir():
            raise UserError(
                f"{CONFIGS}: the configurations are not here; they are part of the repository, not of the wheel"
            )
        made = Made(out)
        if code := make(made, plan.task, QUICK if quick else Effort(), CONFIGS, main):
            return code
        checkpoint, encoder = made.policy, made.encoder
    return show_robot(checkpoint, encoder, plan, host=host, port=port, token=token, open_browser=open_browser)
