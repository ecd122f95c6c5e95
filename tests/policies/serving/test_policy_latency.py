"""`evaluate policy-latency`: what it counts, and its report."""

import json

import numpy as np
import pytest
from tiny_served import Obedient, observation, tiny_policy

from worldmodel import cli
from worldmodel.errors import UserError
from worldmodel.policies.serving.latency import _metrics, measure
from worldmodel.policies.serving.load import Counted, drive, example
from worldmodel.policies.serving.requests import metadata
from worldmodel.policies.serving.server import Serving, background


def test_an_example_is_an_observation_that_the_server_accepts():
    made = example(metadata(Obedient(), 0), np.random.default_rng(0))
    assert {key: getattr(value, "shape", type(value)) for key, value in made.items()} == {
        key: getattr(value, "shape", type(value)) for key, value in observation().items()
    }


def test_every_client_is_counted_and_a_failure_is_told():
    served = Obedient()
    with background(served) as address:
        counted = drive(address, 3, 0.2, None)
        paced = drive(address, 2, 0.18, 20.0)
    assert all(one.latency and not one.failure and len(one.latency) == len(one.infer) for one in counted)
    assert [len(one.latency) for one in paced] == [4, 4]  # at 0, 50, 100 and 150 ms; the second begins 25 ms later
    assert len(served.batches) == sum(len(one.latency) for one in counted + paced) + 3 * 5
    with background(served, Serving(clients=1)) as address:
        assert any("1 clients are connected" in one.failure for one in drive(address, 2, 0.1, None))


def test_the_numbers_are_those_of_all_requests_and_of_the_least_served_client():
    counted = [Counted([1.0] * 98, [0.5] * 98), Counted([50.0, 100.0], [1.0, 2.0])]
    metrics = {name: metric.value for name, metric in _metrics(2, counted, 10.0).items()}
    assert metrics == {
        "chunks_per_second__2": 10.0, "latency_p50__2": 1.0, "latency_p95__2": 1.0, "latency_p99__2": 50.0,
        "latency_max__2": 100.0, "infer_p50__2": 0.5, "least_share__2": 2 / 50,
    }  # fmt: skip


@pytest.mark.slow
def test_the_command_writes_its_json(tmp_path, capsys):
    tiny_policy().save(tmp_path / "policy")
    file = tmp_path / "latency.json"
    assert cli.main(["evaluate", "policy-latency", str(tmp_path / "policy"), "--clients", "1", "3", "--seconds", "0.5",
                     "--json", str(file)]) == 0  # fmt: skip
    found = json.loads(file.read_text())
    assert found["command"].startswith("worldmodel evaluate policy-latency ")
    for clients in (1, 3):
        metric = {name: found["metrics"][f"{name}__{clients}"] for name in ("latency_p50", "latency_p99")}
        assert 0 < metric["latency_p50"]["value"] <= metric["latency_p99"]["value"] and metric["latency_p50"]["n"] > 1
        assert 0 < found["metrics"][f"least_share__{clients}"]["value"] <= 1
    assert "latency_p99__3" in capsys.readouterr().out


@pytest.mark.slow
def test_a_policy_that_fails_ends_the_measurement():
    with pytest.raises(UserError, match="2 clients: Refused: the policy failed"):
        measure(Obedient(fails=RuntimeError()), 2, 0.2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--clients", "1", "1"], "--clients takes different numbers"),
        (["--clients", "0"], "--clients must be in"),
        (["--seconds", "0"], "--seconds"),
        (["--rate", "-1"], "--rate"),
        (["--patience-ms", "2000"], "--patience-ms"),
    ],
)
def test_wrong_options(tmp_path, capsys, options, said):
    assert cli.main(["evaluate", "policy-latency", str(tmp_path), *options]) == 2
    assert said in capsys.readouterr().err
