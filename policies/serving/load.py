"""Clients that ask a served policy for chunks and count: run in a process of their own, beside the server's."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from worldmodel.policies.serving.client import PolicyClient

WARM = 3  # requests of each client that are not counted


@dataclass(slots=True)
class Counted:
    """Milliseconds of one client's requests: from when each was due until its chunk was there; and in the policy."""

    latency: list[float] = field(default_factory=list)
    infer: list[float] = field(default_factory=list)
    failure: str = ""


def drive(address: str, clients: int, seconds: float, rate: float | None, seed: int = 0) -> list[Counted]:
    """Ask with some clients at once for some seconds.

    rate: requests per second and client, spread evenly over the clients; a request that is due while the last one is
    under way waits, and the wait counts. None: each asks again as soon as it is answered.
    """
    counted = [Counted() for _ in range(clients)]
    together = threading.Barrier(clients)
    threads = [
        threading.Thread(target=_run, args=(address, counted, place, seconds, rate, seed, together))
        for place in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counted


def example(metadata: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A random observation of a served policy, by what it says on connecting."""
    made: dict[str, Any] = {}
    for key, of in metadata["observation"].items():
        if of["dtype"] == "uint8":
            made[key] = rng.integers(0, 256, of["shape"], dtype=np.uint8)
        elif of["dtype"] == "float32":
            made[key] = rng.uniform(-0.1, 0.1, of["shape"]).astype(np.float32)
        else:
            made[key] = next(iter(of["words"]), "go")
    return made


def _run(
    address: str, counted: list[Counted], place: int, seconds: float, rate: float | None, seed: int,
    together: threading.Barrier,
) -> None:  # fmt: skip
    own = counted[place]
    try:
        with PolicyClient(address, timeout=60) as client:
            observation = example(client.metadata, np.random.default_rng((seed, place)))
            for _ in range(WARM):
                client.infer(observation)
            together.wait(60)
            begin = time.perf_counter()
            due = begin if rate is None else begin + place / (rate * len(counted))
            while due < begin + seconds:
                time.sleep(max(0.0, due - time.perf_counter()))
                made = client.infer(observation)
                now = time.perf_counter()
                own.latency.append(1e3 * (now - due))
                own.infer.append(made["server_timing"]["infer_ms"])
                due = now if rate is None else due + 1 / rate
    except Exception as error:  # noqa: BLE001 - told to whoever asked for the measurement
        own.failure = f"{type(error).__name__}: {error}"
        together.abort()
