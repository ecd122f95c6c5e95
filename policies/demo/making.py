"""What the robot demo shows, made from nothing: scripted demonstrations, a policy, its trials on broken robots, and the
encoder that corrects it. Lines for the command line, each of which goes on where it was broken off."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worldmodel.errors import UserError
from worldmodel.folders import check_creatable
from worldmodel.serial import read_json, write_json

OFFSETS = "0.14"  # metres at most, of the trials' robots: what the page can do to one, and a little more
RECORD = "made.json"  # the lines that are done


@dataclass(frozen=True, slots=True)
class Effort:
    """episodes: of demonstrations. steps: of the policy's training. trials: on broken robots. corrections: steps of the
    encoder's training."""

    episodes: int = 100
    steps: int = 2000
    trials: int = 300
    corrections: int = 1500


QUICK = Effort(episodes=6, steps=60, trials=12, corrections=40)


@dataclass(frozen=True, slots=True)
class Made:
    """Where everything lies in the folder of a demo."""

    out: Path

    @property
    def policy(self) -> Path:
        return self.out / "policy"

    @property
    def encoder(self) -> Path:
        return self.out / "encoder"

    def lines(self, task: str, effort: Effort, configs: Path) -> list[list[str]]:
        """The commands that make it. configs: folder of the configurations."""
        data, trials = str(self.out / "demonstrations"), str(self.out / "trials")
        policy, encoder = str(self.policy), str(self.encoder)
        return [
            ["collect", f"robot/{task}", "--policy", "jolted", "--episodes", str(effort.episodes), "--frames", "160",
             "--seed", "1000", "--out", data],
            ["train", str(configs / "metaworld_policy.py"), "--data.path", data, "--steps", str(effort.steps),
             "--out", policy],
            ["trials", policy, "--task", task, "--episodes", str(effort.trials), "--most", OFFSETS, "--out", trials],
            ["train", str(configs / "metaworld_adaptation.py"), "--policy", policy, "--trials", trials,
             "--demonstrations.path", data, "--steps", str(effort.corrections), "--out", encoder],
        ]  # fmt: skip


def make(made: Made, task: str, effort: Effort, configs: Path, run: Callable[[list[str]], int]) -> int:
    """Run the lines that are not done yet; the exit code of the first that fails, or 0.

    run: the command line. UserError for a folder that holds the demo of another task or effort.
    """
    lines, record = made.lines(task, effort, configs), made.out / RECORD
    wanted = {"task": task, "effort": [effort.episodes, effort.steps, effort.trials, effort.corrections]}
    done = 0
    if record.is_file():
        found = read_json(record)
        if not isinstance(found, dict) or {key: found.get(key) for key in wanted} != wanted:
            raise UserError(f"{record}: another demo lies here ({_said(found)}): give another --out")
        done = found.get("done", 0)
    elif made.out.is_dir() and any(made.out.iterdir()):
        raise UserError(f"{made.out}: this folder holds something else: give another --out")
    else:
        check_creatable(made.out)
        made.out.mkdir(parents=True, exist_ok=True)
    for number, line in enumerate(lines):
        if number < done:
            continue
        write_json({**wanted, "done": number}, record)
        print(f"\n[{number + 1} of {len(lines)}] worldmodel {' '.join(line)}", flush=True)
        if code := run(line):
            return code
        write_json({**wanted, "done": number + 1}, record)
    return 0


def _said(found: object) -> str:
    return f"task {found.get('task')}, effort {found.get('effort')}" if isinstance(found, dict) else "unreadable"
