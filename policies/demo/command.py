"""`robot-demo`: a policy on a simulated robot in a page where anybody can break the robot."""

from pathlib import Path

import torch

from worldmodel.policies.adaptation import Adaptation
from worldmodel.policies.demo.server import serve_show
from worldmodel.policies.demo.show import Plan, Show
from worldmodel.policies.policy import Policy, find_policy


def show_robot(
    policy: Path,
    encoder: Path | None,
    plan: Plan,
    *,
    host: str,
    port: int,
    token: str | None,
    open_browser: bool,
) -> int:
    """Serve the page; the exit code. UserErrors for folders that are missing, broken or do not fit each other."""
    plan.check()
    torch.set_num_threads(1)
    if encoder is None:
        return serve_show(Show(find_policy(policy), plan), host, port, token, open_browser)
    own = Policy.find(policy)
    return serve_show(Show(own, plan, Adaptation.find(encoder, own)), host, port, token, open_browser)
