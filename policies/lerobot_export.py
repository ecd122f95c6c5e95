"""A policy of ours for lerobot: written by the plug-in, which is a distribution of its own."""

from pathlib import Path

from worldmodel.errors import UserError
from worldmodel.policies.policy import Policy


def export_to_lerobot(checkpoint: Path, out: Path) -> None:
    """Write the policy in a folder or run to a new folder that lerobot-eval and lerobot-train --policy.path take.

    UserErrors as those of `Policy.find`; without the plug-in, one that says how to install it.
    """
    try:
        from lerobot_policy_worldmodel.exported import export
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("lerobot_policy_worldmodel"):
            raise
        raise UserError(
            "the plug-in lerobot_policy_worldmodel is not installed: pip install -e policies/lerobot_plugin"
        ) from error
    policy = Policy.find(checkpoint)
    eyes = policy.model.cfg.eyes
    if eyes != "trained":
        raise UserError(f"{checkpoint}: lerobot's plug-in knows policies with eyes 'trained', not '{eyes}'")
    export(policy, out)
