"""What a policy of lerobot and a robot must agree in, as far as its folder says."""

from dataclasses import dataclass

from worldmodel.errors import UserError
from worldmodel.policies.lerobot_folder import ACTION, STATE, LeRobotFolder
from worldmodel.policies.observation import Interface, Range

WORDS = 256  # bytes of an instruction
# Steps that look at no instruction.
STOCK = {"rename_observations_processor", "to_batch_processor", "device_processor", "normalizer_processor"}


@dataclass(frozen=True, slots=True)
class LeRobotInterface(Interface):
    """What the policy sees and does. Instructions travel as text: their UTF-8 bytes, each plus 1. named: whether the
    policy knows the names of its dimensions, else only their number is compared. reads: whether it reads a state.
    listens: whether it reads an instruction. fps 0: it does not know its rate."""

    named: bool = False
    reads: bool = True
    listens: bool = True

    @property
    def instructed(self) -> bool:
        return self.listens

    def encode(self, instruction: str) -> list[int]:
        text = instruction.encode()
        if len(text) > self.words:
            raise UserError(f"instruction '{instruction[:40]}...': {len(text)} bytes, at most {self.words} are read")
        return [byte + 1 for byte in text] + [0] * (self.words - len(text))

    def misfits(self, state: tuple[str, ...], action: tuple[str, ...], fps: float) -> list[str]:
        found = []
        for what, mine, its in (("state", self.state.names, state), ("action", self.action.names, action)):
            if what == "state" and not self.reads:
                continue
            if self.named and mine != its:
                found.append(f"{what}: the policy has {', '.join(mine)}, the robot {', '.join(its)}")
            elif len(mine) != len(its):
                found.append(f"{what}: the policy has {len(mine)} dimensions, the robot {len(its)}: {', '.join(its)}")
        return found + [f"fps: the policy has {self.fps}, the robot {fps}"] * (self.fps not in (0, fps))


def interface_of(folder: LeRobotFolder) -> LeRobotInterface:
    """The interface of a folder that was read."""
    names = {STATE: folder.config.get("state_names") or [], ACTION: folder.config.get("action_names") or []}
    sizes = {STATE: folder.states or 1, ACTION: folder.actions}
    named = all(len(names[key]) == size for key, size in sizes.items())
    own = {key: tuple(names[key]) if named else tuple(f"{key}[{i}]" for i in range(size))
           for key, size in sizes.items()}  # fmt: skip
    return LeRobotInterface(
        cameras=tuple(folder.cameras),
        size=folder.size,
        state=_unit(own[STATE]),
        action=_unit(own[ACTION]),
        vocabulary=(),
        words=WORDS,
        fps=float(folder.config.get("fps") or 0.0),
        named=named,
        reads=folder.states > 0,
        listens=bool(set(folder.steps) - STOCK),
    )


def _unit(names: tuple[str, ...]) -> Range:
    """The processors scale: what stands here is never used."""
    return Range(names, (-1.0,) * len(names), (1.0,) * len(names))
