"""What is counted in the robot demo, and what the policy is told before each trial."""

import json

import pytest
import torch

from worldmodel.errors import UserError
from worldmodel.policies.demo.messages import Break, Correct, Hello, Pause, Speed, read
from worldmodel.policies.demo.rounds import NOMINAL, ROBOTS, Condition, Count, Rounds
from worldmodel.policies.episodes import Row
from worldmodel.serve.protocol import ProtocolError

BROKEN, OTHER = "encoder-offset:0.05,0,0", "actuation-bias:0,0.05,0"


def outcome(success: bool) -> Row:
    return Row("reach", 0, "", success, 1.0 if success else 0.25, 30 if success else 200, None)


def rounds(most: int = 3) -> Rounds:
    """Trials are numbers here: the token of trial n is [n, 1]."""
    return Rounds(lambda n: torch.tensor([float(n), 1.0]), most)


def run(made: Rounds, *successes: bool) -> list[tuple]:
    """What each trial was told: (place in its round, tokens, the token itself)."""
    told = []
    for success in successes:
        attempt = made.attempt()
        told.append(
            (attempt.condition.after, attempt.tokens, None if attempt.token is None else attempt.token.tolist())
        )
        made.finish(attempt, outcome(success), attempt.number)
    return told


def test_only_failed_trials_of_a_round_are_summed_and_then_another_round_begins():
    made = rounds()
    made.become(BROKEN)
    made.correct(True, "sum")
    told = run(made, False, False, True, False, False, False)
    assert told == [
        (0, 0, None),
        (1, 1, [0.0, 1.0]),
        (2, 2, [1.0, 2.0]),
        (3, 2, [1.0, 2.0]),  # the third trial succeeded, so that it added nothing
        (0, 0, None),
        (1, 1, [4.0, 1.0]),
    ]
    assert [each.attempt.round for each in made.outcomes] == [1, 1, 1, 1, 2, 2]


def test_the_mean_of_tokens():
    made = rounds()
    made.correct(True, "mean")
    assert run(made, False, False, False) == [(0, 0, None), (1, 1, [0.0, 1.0]), (2, 2, [0.5, 1.0])]


def test_without_correction_nothing_is_known_and_every_trial_is_a_round():
    made = rounds()
    assert run(made, False, False, True) == [(0, 0, None)] * 3
    assert [each.attempt.round for each in made.outcomes] == [0, 1, 2]
    assert made.count(Condition(NOMINAL)) == Count(1, 3)


def test_counts_and_wilsons_intervals_per_condition():
    made = rounds(1)
    run(made, True, True, False, True)
    made.become(BROKEN)
    run(made, False, False)
    made.correct(True, "sum")
    run(made, False, True, True, False)
    table = {name: count for name, _, count in made.table()}
    assert table == {"as built": Count(3, 4), "broken": Count(1, 4), "after 1": Count(1, 2)}
    found = table["as built"].to_json()
    # Wilson's interval of 3 of 4 by its own formula, z = 1.959964
    low, high = (3 + 3.841459 / 2 - s * 1.959964 * (3 * 1 / 4 + 3.841459 / 4) ** 0.5 for s in (1, -1))
    assert found["rate"] == 0.75
    assert found["interval"] == pytest.approx([low / (4 + 3.841459), high / (4 + 3.841459)], abs=1e-6)
    assert Count().to_json() == {"successes": 0, "trials": 0, "rate": None, "interval": None}


def test_another_shift_is_another_robot_of_which_nothing_is_known():
    made = rounds()
    made.correct(True, "sum")
    made.become(BROKEN)
    run(made, False, False)
    assert made.tokens == 2
    assert made.become(OTHER) and made.tokens == 0
    assert run(made, False, False) == [(0, 0, None), (1, 1, [2.0, 1.0])]
    assert [(name, count) for name, _, count in made.table()][:3] == [
        ("as built", Count()),
        ("broken", Count(0, 1)),
        ("after 1", Count(0, 1)),
    ]
    assert made.become(BROKEN)  # its counts are still there, what was known is not
    assert made.count(Condition(BROKEN)) == Count(0, 1) and run(made, True)[0] == (0, 0, None)
    before = made.round
    assert not made.become(BROKEN) and made.round == before


def test_a_trial_that_another_round_overtakes_counts_but_teaches_nothing():
    made = rounds()
    made.correct(True, "sum")
    attempt = made.attempt()
    made.begin()
    made.finish(attempt, outcome(False), 7)
    assert made.tokens == 0 and made.count(Condition(NOMINAL)) == Count(0, 1)
    assert run(made, False)[0] == (0, 0, None)


def test_correction_switched_on_in_a_trial_makes_it_the_first_of_its_round():
    made = rounds()
    attempt = made.attempt()
    made.correct(True, "sum")
    made.finish(attempt, outcome(False), 9)
    assert run(made, False) == [(1, 1, [9.0, 1.0])]
    made.correct(True, "mean")  # what was counted as sum stays apart
    assert run(made, False, False) == [(0, 0, None), (1, 1, [2.0, 1.0])]
    assert made.count(Condition(NOMINAL, 1, "sum")) == made.count(Condition(NOMINAL, 1, "mean")) == Count(0, 1)
    made.correct(False, "mean")
    assert made.tokens == 0 and run(made, False, False) == [(0, 0, None)] * 2


def test_counts_are_cleared_and_do_not_grow_without_end():
    made = rounds()
    run(made, True)
    for n in range(3 * ROBOTS):
        made.become(f"gain:1.{n:03d}")
        run(made, False)
    assert made.count(Condition(NOMINAL)) == Count(1, 1)
    kept = [n for n in range(3 * ROBOTS) if made.count(Condition(f"gain:1.{n:03d}")) == Count(0, 1)]
    assert kept == list(range(3 * ROBOTS - (ROBOTS - 1), 3 * ROBOTS))
    made.clear()
    assert not made.outcomes and all(count == Count() for _, _, count in made.table())


def test_there_is_no_correction_without_an_encoder():
    made = Rounds(None)
    with pytest.raises(UserError, match="--encoder"):
        made.correct(True, "sum")
    made.correct(False, "mean")
    assert made.way == "mean" and not made.correcting


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"type": "hello", "version": 2}, Hello(version=2)),
        ({"type": "break", "shift": "encoder-offset:0.0500,-0,1e-2"}, Break(shift="encoder-offset:0.05,-0,0.01")),
        ({"type": "correct", "on": True, "way": "mean"}, Correct(on=True, way="mean")),
        ({"type": "pause", "on": False}, Pause(on=False)),
        ({"type": "speed", "times": 0}, Speed(times=0.0)),
    ],
)
def test_wishes_are_read(fields, wanted):
    assert read(json.dumps(fields)) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "not a JSON message"),
        ("[1]", "JSON object"),
        ('{"type": "fly"}', "type 'fly' is none of"),
        ('{"type": "hello", "version": 1}', "protocol version 2, not 1"),
        ('{"type": "break"}', "'shift' is missing"),
        ('{"type": "break", "shift": 3}', "expected str"),
        ('{"type": "break", "shift": "' + "x" * 300 + '"}', "300 characters"),
        ('{"type": "correct", "on": 1}', "expected bool"),
        ('{"type": "correct", "on": true, "way": "max"}', "none of"),
        ('{"type": "speed", "times": NaN}', "NaN is not a number"),
        ('{"type": "speed", "times": 1e9}', r"outside \[0.1, 10\]"),
        ('{"type": "again", "now": 1}', "unknown key 'now'"),
        ("x" * 20_000, "over the limit"),
    ],
)
def test_what_is_no_message_is_refused_in_one_line(text, said):
    with pytest.raises(ProtocolError, match=said) as caught:
        read(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shift", ["limp", "encoder-offset:9,0,0", "actuation-bias:nan,0,0", "latency:0.5", "gain:0"])
def test_a_shift_that_there_is_not(shift):
    with pytest.raises(UserError, match="shift"):
        read(json.dumps({"type": "break", "shift": shift}))
