"""`evaluate policy-latency`: how long robots wait for a served policy, alone and several at once."""

import multiprocessing
from pathlib import Path

import numpy as np

from worldmodel.calibration import calibrate
from worldmodel.datasets.evaluate import as_typed, finish, prepare
from worldmodel.errors import UserError
from worldmodel.evaluate.report import Metric, Report, Table
from worldmodel.folders import check_outputs
from worldmodel.options import check_range
from worldmodel.policies.flow_policy import PolicyConfig
from worldmodel.policies.observation import Interface, Range
from worldmodel.policies.policy import Acting, Policy, find_policy
from worldmodel.policies.serving.load import Counted, drive
from worldmodel.policies.serving.served import ServedPolicy
from worldmodel.policies.serving.server import Serving, background
from worldmodel.serve.meter import percentiles


def policy_latency(
    checkpoint: Path | None = None,
    clients: tuple[int, ...] = (1, 8),
    seconds: float = 20.0,
    rate: float | None = None,
    together: bool = False,
    patience_ms: float = 2.0,
    out: Path | None = None,
    json: Path | None = None,
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """How long clients of a served policy wait for a chunk: p50, p95, p99, and whether all are served alike.

    Example: worldmodel evaluate policy-latency runs/policies/reach --clients 1 8 --seconds 30

    Without a checkpoint, of an untrained policy of the usual sizes for two cameras of 64 x 64: that takes as long. The
    server runs in this process, all clients in a second one, over loopback; each number of --clients is measured
    for --seconds. Clients ask again as soon as they are answered, or --rate times per second each, where a request that
    has to wait for the last one is measured from when it was due. --together and --patience-ms are serve-policy's.
    """
    command = as_typed(policy_latency, locals()).replace("policy_latency", "policy-latency", 1)
    if not clients or len(set(clients)) < len(clients):
        raise UserError(f"--clients takes different numbers, one or more, not '{' '.join(map(str, clients))}'")
    for number in clients:
        check_range(1, 256, clients=number)
    if not 0 < seconds <= 3600:
        raise UserError(f"--seconds must be in (0, 3600], not {seconds}")
    if rate is not None and not 0 < rate <= 1000:
        raise UserError(f"--rate must be in (0, 1000], not {rate}")
    if not 0 <= patience_ms <= 1000:
        raise UserError(f"--patience-ms must be in [0, 1000], not {patience_ms}")
    check_outputs(out, file=json)
    prepare(device, threads)
    policy = untrained(device) if checkpoint is None else find_policy(checkpoint, device)
    served = ServedPolicy(policy, together, "naive")
    speed = calibrate()
    found = {number: measure(served, number, seconds, rate, patience_ms / 1000) for number in clients}
    metrics = {"gflops": Metric(speed.gflops, "GFLOP/s"), "load": Metric(speed.load)}
    for number, counted in found.items():
        metrics |= _metrics(number, counted, seconds)
    how = "as soon as they are answered" if rate is None else f"{rate:g} times per second each"
    report = Report(
        command=command,
        seeds=(0,),
        device=device,
        metrics=metrics,
        headline=tuple(metrics),
        tables=(Table("Latency of a chunk by number of clients", HEAD, tuple(_row(n, metrics) for n in clients)),),
        notes=(
            f"Latency: milliseconds from when a request was due until its chunk had been read, over loopback; clients "
            f"ask {how}. infer: of these, in the policy. least_share: requests of the least served client over the "
            "mean of all.",
        ),
        title="Latency of a served policy",
    )
    return finish(report, "policy_latency", out, json)


def untrained(device: str = "cpu") -> Policy:
    """A policy for Meta-World with random weights, as configs/metaworld_policy.py would train it."""
    hand, target = ("hand_x", "hand_y", "hand_z", "opening"), ("target_x", "target_y", "target_z", "grip")
    interface = Interface(
        cameras=("corner", "corner2"),
        size=(64, 64),
        state=Range(hand, (-0.5,) * 4, (0.5,) * 4),
        action=Range(target, (-0.5,) * 4, (0.5,) * 4),
        vocabulary=("reach",),
        words=1,
        fps=10.0,
    )
    return Policy(PolicyConfig().build(interface).to(device).eval().requires_grad_(False), Acting())


HEAD = ("clients", "chunks/s", "p50 ms", "p95 ms", "p99 ms", "infer p50 ms", "least share")


def measure(
    served: ServedPolicy, clients: int, seconds: float, rate: float | None = None, patience: float = 0.0
) -> list[Counted]:
    """What each of some clients counts. Raises UserError if one of them fails."""
    serving = Serving(clients=clients, rows=clients if served.together else 1, patience=patience)
    with background(served, serving) as address, multiprocessing.get_context("spawn").Pool(1) as pool:
        counted = pool.apply(drive, (address, clients, seconds, rate))
    if failures := [one.failure for one in counted if one.failure]:
        raise UserError(f"{clients} clients: {failures[0]}")
    if not all(one.latency for one in counted):
        raise UserError(f"{clients} clients: not all were answered within {seconds:g} s, give more --seconds")
    return counted


def _metrics(clients: int, counted: list[Counted], seconds: float) -> dict[str, Metric]:
    latency = [ms for one in counted for ms in one.latency]
    infer = [ms for one in counted for ms in one.infer]
    served = np.array([len(one.latency) for one in counted])
    ranks = percentiles(latency)
    return {
        f"chunks_per_second__{clients}": Metric(len(latency) / seconds, "1/s", len(latency)),
        **{f"latency_{p}__{clients}": Metric(ranks[p], "ms", len(latency)) for p in ("p50", "p95", "p99")},
        f"latency_max__{clients}": Metric(max(latency), "ms", len(latency)),
        f"infer_p50__{clients}": Metric(percentiles(infer)["p50"], "ms", len(infer)),
        f"least_share__{clients}": Metric(float(served.min() / served.mean()), "", clients),
    }


def _row(clients: int, metrics: dict[str, Metric]) -> tuple[str, ...]:
    names = ("chunks_per_second", "latency_p50", "latency_p95", "latency_p99", "infer_p50", "least_share")
    return (str(clients), *(f"{metrics[f'{name}__{clients}'].value:.3g}" for name in names))
