"""A robot's loop in virtual time: answers come a number of control steps late, and nothing that is too old is done."""

import re
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_served import CHUNK, EXECUTE, Obedient, observation, tiny_policy

from worldmodel.errors import UserError
from worldmodel.policies.observation import Observation
from worldmodel.policies.planning import Committed, plan
from worldmodel.policies.serving.client import PolicyClient
from worldmodel.policies.serving.link import Backoff, PolicyLink, Reply
from worldmodel.policies.serving.robot_client import RobotClient, connect
from worldmodel.policies.serving.served import ServedPolicy
from worldmodel.policies.serving.server import background

METADATA = {"actions": {"shape": [CHUNK, 2]}, "execute": EXECUTE, "chunking": "guided"}


class Delayed:
    """A link whose answers come when the test says so, in control steps: `delays` of the requests, in their order.

    Actions name the moment of their observation and their own: (asked at, asked at + place).
    """

    def __init__(self, *delays: int | None, server: PolicyClient | None = None) -> None:
        self.metadata: Mapping[str, Any] = METADATA if server is None else server.metadata
        self.delays, self.server, self.trouble = list(delays), server, ""
        self.asked: list[dict[str, Any]] = []
        self.left: int | None = None
        self.answer: Reply | None = None

    @property
    def ready(self) -> bool:
        return not self.trouble and self.answer is None

    def ask(self, request) -> None:
        assert self.ready
        self.asked.append(dict(request))
        delay = self.delays[min(len(self.asked), len(self.delays)) - 1]
        self.left = delay
        if self.server is not None:
            self.answer = Reply(self.server.infer(request)["actions"])
        else:
            moments = request["step"] + np.arange(CHUNK, dtype=np.float32)
            self.answer = Reply(np.stack([np.full(CHUNK, request["step"], np.float32), moments], 1))

    def reply(self) -> Reply | None:
        if self.answer is None or self.left is None:
            return None
        self.left -= 1
        if self.left > 0:
            return None
        answer, self.answer = self.answer, None
        return answer

    def close(self) -> None:
        self.trouble = "closed"


def acted(client: RobotClient, steps: int) -> list[tuple[str, int | None, Any]]:
    """State, age and the two numbers of the action, for some steps."""
    commands = [client.act({"step_of_robot": number}) for number in range(steps)]
    return [(c.state, c.age, None if c.action is None else tuple(c.action.astype(int))) for c in commands]


def test_every_moment_gets_the_action_that_was_planned_for_it():
    client = RobotClient(Delayed(2), delay=2)
    got = acted(client, 20)
    assert got[:2] == [("hold", None, None)] * 2
    # asked at 0, 4, 8, ...; each takes over two steps later, when the old chunk has covered them
    for moment in range(2, 20):
        asked = 0 if moment < 6 else (moment - 2) // EXECUTE * EXECUTE
        assert got[moment] == ("policy", moment - asked, (asked, moment))
    assert client.counts.chunks == 5 and client.counts.held == 2 and client.counts.late == 0


def test_a_request_holds_what_is_planned_and_how_long_the_answer_is_expected_to_take():
    link = Delayed(1, 3, 1)
    client = RobotClient(link, delay=1, prompt="go there", seed=5)
    acted(client, 14)
    first, second, third = link.asked[:3]
    assert first == {"seed": 5, "step": 0, "step_of_robot": 0, "prompt": "go there"}
    assert second["step"] == 4 and second["delay"] == 1
    np.testing.assert_array_equal(second["committed"][:, 1], [4, 5, 6, 7])
    assert third["step"] == 8 and third["delay"] == 3  # the longest of the last ones
    np.testing.assert_array_equal(third["committed"], [[4, 8], [4, 9], [4, 10], [4, 11]])
    assert client.delay == 3 and client.counts.late == 1  # the second took 3 steps and had been told 1


def test_an_answer_that_is_early_does_not_replace_what_has_been_committed():
    link = Delayed(3, 1)
    client = RobotClient(link, delay=3)
    got = acted(client, 9)
    assert [action for _, _, action in got[4:]] == [(0, 4), (0, 5), (0, 6), (4, 7), (4, 8)]
    assert link.asked[1]["delay"] == 3  # and came after 1


def test_a_server_that_does_not_continue_a_plan_is_not_told_it_and_its_chunks_are_used_at_once():
    link = Delayed(3, 1)
    link.metadata = METADATA | {"chunking": "naive"}
    client = RobotClient(link, delay=3)
    got = acted(client, 7)
    assert [action for _, _, action in got[4:]] == [(0, 4), (4, 5), (4, 6)]
    assert all("committed" not in request and "delay" not in request for request in link.asked)


def test_an_answer_that_is_late_goes_on_where_the_robot_is():
    client = RobotClient(Delayed(1, 5), delay=1, execute=4)
    got = acted(client, 12)
    # asked at 4, expected at 5, there at 9: until 7 the first chunk goes on, at 8 it has ended
    assert [action for _, _, action in got[4:10]] == [(0, 4), (0, 5), (0, 6), (0, 7), (0, 7), (4, 9)]
    assert got[8][0] == "hold" and client.counts.late == 1


def test_a_chunk_that_comes_when_it_is_over_is_dropped():
    client = RobotClient(Delayed(CHUNK, 1), delay=1)
    commands = [client.act({}) for _ in range(CHUNK + 3)]
    assert client.counts.stale == 1 and client.counts.chunks == 2
    assert commands[CHUNK].state == "hold" and "took 8 steps, longer than it lasts" in commands[CHUNK].why
    assert commands[CHUNK + 1].state == "policy" and commands[CHUNK + 1].age == 1


def test_the_watchdog_holds_and_says_so():
    link = Delayed(1, None)
    client = RobotClient(link, delay=1, max_age=5)
    commands = [client.act({}) for _ in range(12)]
    assert [c.state for c in commands] == ["hold"] + ["policy"] * 5 + ["hold"] * 6
    assert max(c.age for c in commands if c.age is not None) == 5
    assert commands[0].action is None and commands[0].why == "no chunk has come yet"
    assert commands[6].why == "the newest action is 6 steps old, the limit is 5"
    assert commands[9].why == "the plan has ended 2 steps ago"
    for command in commands[6:]:
        np.testing.assert_array_equal(command.action, commands[5].action)
    link.trouble = "the policy server is gone: no answer within 1 s"
    assert client.act({}).why == f"the plan has ended 5 steps ago; {link.trouble}"
    assert client.counts.held == 8


def test_the_robot_may_overwrite_an_observation_that_is_still_being_sent():
    link, seen = Delayed(None), {"hand": np.zeros(2, np.float32)}
    RobotClient(link).act(seen)
    seen["hand"][:] = 9
    np.testing.assert_array_equal(link.asked[0]["hand"], np.zeros(2))


def test_hold_is_the_robots_own():
    client = RobotClient(Delayed(None), hold=lambda seen, last: seen["hand"] * 0)
    np.testing.assert_array_equal(client.act({"hand": np.ones(2, np.float32)}).action, np.zeros(2))


def test_stop_leaves_the_robot_in_hold_and_reset_begins_anew():
    link = Delayed(1, 3, 1)
    client = RobotClient(link, delay=1)
    acted(client, 5)  # the second request is under way
    stopper = threading.Thread(target=client.stop)
    stopper.start()
    stopper.join()
    commands = [client.act({}) for _ in range(6)]
    assert {c.state for c in commands} == {"stopped"} and client.counts.stale == 1 and len(link.asked) == 2
    for command in commands:
        np.testing.assert_array_equal(command.action, [0, 4])
    client.reset("come here")
    assert acted(client, 3)[1:] == [("policy", 1, (0, 1)), ("policy", 2, (0, 2))]
    assert link.asked[2]["prompt"] == "come here" and "committed" not in link.asked[2] and link.asked[2]["step"] == 0


def test_an_answer_to_an_earlier_episode_is_dropped():
    link = Delayed(3, 1)
    client = RobotClient(link, delay=1)
    acted(client, 1)
    client.reset()
    got = acted(client, 5)
    assert client.counts.stale == 1 and [state for state, _, _ in got] == ["hold"] * 3 + ["policy"] * 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Reply(None, "the server refuses the observation: missing: x"), "refuses the observation: missing: x"),
        (Reply(np.zeros((3, 2), np.float32)), r"shape \(3, 2\), not \(8, 2\)"),
    ],
)
def test_an_answer_without_a_chunk_is_said_and_asked_again(answer, why):
    link = Delayed(1)
    client = RobotClient(link)
    client.act({})
    link.answer = answer
    command = client.act({})
    assert command.state == "hold" and re.search(why, command.why)
    assert client.counts.failed == 1 and len(link.asked) == 2
    assert client.act({}).state == "policy"


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, CHUNK), st.integers(0, 4), st.integers(0, 8)
)
def test_whatever_the_delays_no_action_is_too_old_or_of_another_moment(delays, execute, delay, max_age):
    client = RobotClient(Delayed(*delays), execute=execute, delay=delay, max_age=max_age)
    for moment, (state, age, action) in enumerate(acted(client, 60)):
        if state == "policy":
            assert age is not None and action == (moment - age, moment)
            assert 0 <= age <= max_age and age < CHUNK
    counts = client.counts
    assert counts.chunks + counts.stale <= 60 and counts.failed == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [({"execute": 9}, "execute"), ({"execute": 0}, "execute"), ({"delay": -1}, "delay"), ({"max_age": 9}, "max_age")],
)
def test_numbers_out_of_range(options, said):
    with pytest.raises(UserError, match=f"{said} must be in"):
        RobotClient(Delayed(1), **options)


def test_a_server_that_says_nothing_of_its_actions_is_refused():
    link = Delayed(1)
    link.metadata = {}
    with pytest.raises(UserError, match="needs a server of ours"):
        RobotClient(link)


# -- against the server ------------------------------------------------------------------------------------------------


class Robot:
    """A hand that goes a third of the way to its target per control step; its pictures change with where it is."""

    def __init__(self) -> None:
        self.hand = np.zeros(2, np.float32)

    def observe(self) -> dict[str, Any]:
        seen = observation(int(1000 * np.abs(self.hand).sum()))
        return seen | {"observation.state": np.append(self.hand, 0.5).astype(np.float32)}

    def move(self, target) -> None:
        if target is not None:
            self.hand = self.hand + (target - self.hand) / 3


@pytest.mark.parametrize("chunking", ["naive", "guided", "prefix"])
@pytest.mark.parametrize("delay", [1, 2, 4])
def test_at_20_hz_with_a_delayed_network_the_robot_does_what_the_plan_says(chunking, delay):
    """The same loop written down plainly: an observation every `execute` steps, whose chunk is used `delay` later."""
    policy, steps = tiny_policy(), 24
    with background(ServedPolicy(policy, chunking=chunking)) as address, PolicyClient(address) as server:
        robot, targets = Robot(), []
        client = RobotClient(Delayed(delay, server=server), delay=delay)
        for _ in range(steps):
            command = client.act(robot.observe())
            targets.append(command.action)
            robot.move(command.action)
    robot, chunk, coming, expected = Robot(), None, None, []
    for moment in range(steps):
        if moment % EXECUTE == delay % EXECUTE and moment >= delay:
            chunk = coming
        if moment % EXECUTE == 0:
            coming = planned(policy, robot.observe(), moment, chunk, delay, chunking)
        place = None if chunk is None else moment - ((moment - delay) // EXECUTE) * EXECUTE
        expected.append(None if chunk is None else chunk[place])
        robot.move(expected[-1])
    assert (
        [target is None for target in targets]
        == [target is None for target in expected]
        == [moment < delay for moment in range(steps)]
    )
    np.testing.assert_allclose(np.stack(targets[delay:]), np.stack(expected[delay:]), atol=2e-6)
    assert client.counts.late == client.counts.stale == client.counts.failed == 0


def planned(policy, seen, moment, chunk, delay, chunking):
    """The chunk of an observation, with what the last one had planned for the same moments."""
    pictures = np.stack([seen["observation.images.front"], seen["observation.images.side"]]).transpose(0, 3, 1, 2)
    state = torch.from_numpy(seen["observation.state"])[None]
    control = Observation(torch.from_numpy(pictures.copy())[None], state, torch.tensor([[1, 2]]), CHUNK)
    committed = None
    if chunk is not None:
        rest = np.concatenate((chunk[EXECUTE:], np.repeat(chunk[-1:], EXECUTE, 0)))
        committed = Committed(policy.model.normalised(torch.from_numpy(rest))[None], CHUNK - EXECUTE, delay)
    where = (torch.tensor([0]), torch.tensor([moment]))
    made = plan(policy.model, policy.acting.sampler, control, *where, chunking, committed)
    return policy.model.in_units(made)[0].numpy()


def settled(link: PolicyLink) -> Reply:
    """The reply, when it comes."""
    for _ in range(30_000):
        if (reply := link.reply()) is not None:
            return reply
        threading.Event().wait(0.001)
    raise AssertionError("no reply")


def test_the_real_link_asks_in_the_background_and_keeps_one_answer():
    served = Obedient()
    with background(served) as address, PolicyLink(address) as link:
        served.gate.clear()
        assert link.ready and link.reply() is None
        link.ask(observation() | {"seed": 2})
        assert not link.ready and link.reply() is None
        with pytest.raises(RuntimeError, match="one request at a time"):
            link.ask(observation())
        served.gate.set()
        assert (settled(link).actions[:, 0] == 2).all() and link.ready
        link.ask({})
        refused = settled(link)
        assert refused.actions is None and "refuses the observation: missing" in refused.why and link.ready
        served.infer = lambda requests: [np.zeros((CHUNK, 3), np.float32)]
        link.ask(observation())
        assert settled(link).actions.shape == (CHUNK, 3)


def test_a_lost_server_is_said_and_found_again(monkeypatch):
    """The second server listens where the first did; the link comes back by itself, and the robot with it."""
    from worldmodel.policies.serving import server as module

    listen = module.listen
    with background(Obedient()) as address:
        port = int(address.removesuffix("/").rpartition(":")[2])
        client = connect(address, prompt="go there", backoff=Backoff(first=0.001, most=0.01))
        until(client, "policy")
    seen = {key: value for key, value in observation().items() if key != "prompt"}
    gone = until(client, "hold", seen)
    assert gone.action is not None
    while "policy" not in client.act(seen).why:
        threading.Event().wait(0.001)
    assert client.act(seen).state == "hold"
    monkeypatch.setattr(module, "listen", lambda host, _: listen(host, port))
    with background(Obedient()), client:
        assert until(client, "policy", seen).age is not None
        assert client._link.reconnections == 1 and client._link.trouble == ""


def until(client: RobotClient, state: str, seen: dict[str, Any] | None = None):
    for _ in range(30_000):
        command = client.act(seen or observation())
        if command.state == state:
            return command
        threading.Event().wait(0.001)
    raise AssertionError(f"never {state}")


def test_another_policy_at_the_same_address_is_not_obeyed(monkeypatch):
    from worldmodel.policies.serving import server as module

    listen = module.listen
    with background(Obedient()) as address:
        port = int(address.removesuffix("/").rpartition(":")[2])
        link = PolicyLink(address, backoff=Backoff(first=0.001, most=0.01))
    link.ask(observation())
    assert settled(link).actions is None and not link.ready and link.trouble
    monkeypatch.setattr(module, "listen", lambda host, _: listen(host, port))
    with background(Obedient(chunk=CHUNK + 1)), link:
        while "another policy" not in link.trouble:
            threading.Event().wait(0.001)
        assert not link.ready


@given(st.integers(0, 100), st.floats(0, 1))
def test_tries_to_connect_get_rarer_up_to_a_limit(tries, share):
    seconds = Backoff(first=0.1, most=5.0).seconds(tries, share)
    whole = min(5.0, 0.1 * 2**tries)
    assert whole / 2 <= seconds <= whole and seconds == pytest.approx(whole * (1 + share) / 2)
