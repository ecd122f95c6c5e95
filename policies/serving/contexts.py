"""A finished trial as a client sends it, for the token that corrects the policy in the next one.

    {"trial": {"observation.images.CAMERA": uint8 [M, H, W, 3], "observation.state": float [M, S],
               "actions": float [M, A]}}

M moments: the observations from which chunks were asked for, and the first action that was carried out after each. The
answer is the trial's token. The server keeps nothing: the client adds tokens up, and sends the sum with its requests.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from worldmodel.errors import UserError
from worldmodel.policies.episodes import Trial
from worldmodel.policies.observation import Interface
from worldmodel.policies.serving.requests import IMAGES, STATE, check_array, shown

TRIAL, ACTIONS = "trial", "actions"
MOMENTS = 64  # of a trial, at most


def metadata(interface: Interface, width: int) -> dict[str, Any]:
    """What a client is told of trials and tokens. width: W, numbers of a token."""
    return {
        "token": {"dtype": "float32", "shape": [width]},
        "trial": [*(IMAGES + camera for camera in interface.cameras), STATE, ACTIONS],
        "moments": MOMENTS,
    }


def read_trial(message: Mapping[str, Any], interface: Interface, width: int | None) -> Trial:
    """The trial in a message. width: as above; None: there is no context encoder. UserError with all that is wrong."""
    if width is None:
        raise UserError("trial: this server has no context encoder (serve-policy --encoder FOLDER)")
    trial, wrong = message[TRIAL], list[str]()
    if others := [f"{key:.60}" for key in message if key != TRIAL]:
        wrong.append(f"unknown beside trial: {', '.join(others[:8])}")
    if not isinstance(trial, dict):
        raise UserError("; ".join([*wrong, f"trial: a map is needed, not {shown(trial)}"]))
    pictures = [IMAGES + camera for camera in interface.cameras]
    wanted = [*pictures, STATE, ACTIONS]
    if missing := [key for key in wanted if key not in trial]:
        wrong.append(f"missing in trial: {', '.join(missing)}")
    if unknown := [f"{key!s:.60}" for key in trial if key not in wanted]:
        wrong.append(f"unknown in trial: {', '.join(unknown[:8])}{' ...' * (len(unknown) > 8)}")
    counts = {len(value) for key, value in trial.items() if isinstance(value, np.ndarray) and value.ndim}
    moments = next(iter(counts), 0)
    if len(counts) > 1:
        wrong.append(f"trial: as many moments in every array, not {', '.join(map(str, sorted(counts)))}")
    elif not 1 <= moments <= MOMENTS:
        wrong.append(f"trial: 1 to {MOMENTS} moments are read, not {moments}")
    else:
        wrong += _arrays(trial, interface, moments)
    if wrong:
        raise UserError("; ".join(wrong))
    return Trial(
        image=np.stack([trial[key] for key in pictures], 1).transpose(0, 1, 4, 2, 3).copy(),
        state=trial[STATE].astype(np.float32),
        action=trial[ACTIONS].astype(np.float32),
    )


def _arrays(trial: Mapping[Any, Any], interface: Interface, moments: int) -> Iterator[str]:
    for camera in interface.cameras:
        if IMAGES + camera in trial:
            shape = (moments, *interface.size, 3)
            yield from check_array(IMAGES + camera, trial[IMAGES + camera], "u", shape, "uint8")
    for key, names in ((STATE, interface.state.names), (ACTIONS, interface.action.names)):
        if key in trial:
            yield from check_array(key, trial[key], "f", (moments, len(names)), "floats", names)
