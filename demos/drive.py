"""Drive a running stream from a program: hold some actions, count the pictures, keep the last one.

    worldmodel demo                                   # in one terminal
    python demos/drive.py drive --turn 5              # in another
    python demos/drive.py measure --seconds 30 --clients 2

`measure` drives nothing and prints what the stream delivers, for one or more clients at once.
"""

import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import cv2
import tyro

from worldmodel.calibration import calibrate
from worldmodel.serve.client import Client, measure
from worldmodel.serve.protocol import VERSION, Hello


def drive(
    address: str = "http://127.0.0.1:8000/",
    turn: float = 0.0,
    forward: float = 1.0,
    strafe: float = 0.0,
    frames: int = 96,
    world: str | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Hold actions for some pictures and write the last one. world: a name that the server knows; None: its first."""
    with Client(address, Hello(version=VERSION, world=world, seed=seed)) as client:
        client.message("started")
        client.hold(turn=turn, forward=forward, strafe=strafe)
        last = list(islice(client.frames(), frames))[-1]
        print(f"picture {last.header.index} of stream {last.header.stream}, {last.header.pts / 1e6:.2f} s of video")
        if out is not None:
            cv2.imwrite(str(out), cv2.cvtColor(last.picture, cv2.COLOR_RGB2BGR))


def measured(
    address: str = "http://127.0.0.1:8000/", seconds: float = 30.0, clients: int = 1, pace: float | None = None
) -> None:
    """Print what each client gets, beside the speed of this machine. pace 0: as fast as possible."""
    print(json.dumps({"calibration": asdict(calibrate())}))
    for result in measure(address, seconds, clients, pace):
        print(json.dumps({name: round(value, 2) for name, value in result.items()}))


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"drive": drive, "measure": measured})
