"""What the command line knows: names, where their functions live, what stands in the overview."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """Where a command's function lives, and which of its arguments are given without a name."""

    module: str
    function: str
    positional: tuple[str, ...]
    help: str


EVALUATE, WORLDS = "worldmodel.datasets.evaluate", "worldmodel.cli.worlds"
TRAINING, KERNELS = "worldmodel.cli.training", "worldmodel.cli.kernels"
ADAPTATION = "worldmodel.policies.adaptation_commands"
FACE = "worldmodel.face.tools"
COMMANDS = {
    "demo": Command(WORLDS, "demo", (), "drive the shipped world in the browser"),
    "robot-demo": Command(
        "worldmodel.cli.robots", "robot_demo", ("checkpoint",), "break a robot in the browser, watch it correct itself"
    ),
    "collect": Command(WORLDS, "collect", ("world",), "simulator -> LeRobotDataset v3"),
    "inspect": Command("worldmodel.datasets.inspect", "inspect", ("path",), "what is this, and what comes next?"),
    "convert": Command("worldmodel.datasets.convert", "convert", ("source", "out"), "videos -> LeRobotDataset v3"),
    "encode": Command("worldmodel.datasets.encode", "encode", ("data",), "pre-compute latents"),
    "trials": Command(ADAPTATION, "trials", ("checkpoint",), "a policy's episodes on shifted robots, to adapt from"),
    "train": Command(TRAINING, "train", (), "train what a file in configs/ describes"),
    "estimate": Command(TRAINING, "estimate", (), "parameters, memory and time of a run before it starts"),
    "rollout": Command(WORLDS, "rollout", ("checkpoint",), "long generation to a video"),
    "evaluate drift": Command(EVALUATE, "drift", ("checkpoint",), "how pictures change as a rollout gets long"),
    "evaluate compare": Command(EVALUATE, "compare", ("arms",), "drift of several ways to train, over seeds"),
    "evaluate context": Command(EVALUATE, "context", ("models",), "how long it remembers what it has seen"),
    "evaluate actions": Command(EVALUATE, "actions", ("checkpoint",), "does the video follow its actions?"),
    "evaluate latency": Command(EVALUATE, "latency", ("checkpoint",), "frames per second, early and late"),
    "evaluate memory": Command(EVALUATE, "memory", ("checkpoint",), "cost of every memory against context length"),
    "evaluate policy": Command(
        "worldmodel.policies.evaluate", "policy", ("checkpoint",), "success of a policy on robots"
    ),
    "evaluate chunking": Command(
        "worldmodel.policies.chunking", "chunking", ("checkpoint",), "chunks of a policy whose robot moves meanwhile"
    ),
    "evaluate policy-latency": Command(
        "worldmodel.policies.serving.latency", "policy_latency", ("checkpoint",), "how long robots wait for it"
    ),
    "evaluate recovery": Command(ADAPTATION, "recovery_command", ("checkpoint",), "how a policy adapts over trials"),
    "evaluate swap": Command(
        "worldmodel.datasets.faces.evaluate", "swap", ("methods",), "face swaps beside baselines, on every axis"
    ),
    "kernels check": Command(
        KERNELS, "kernels_check", (), "prove the kernels right without a GPU, compile them for many"
    ),
    "kernels bench": Command(KERNELS, "kernels_bench", (), "time the kernels against the physical bound and peers"),
    "export": Command(WORLDS, "export", ("checkpoint", "out"), "a folder to share, for diffusers, lerobot or the hub"),
    "serve": Command(WORLDS, "serve", ("checkpoint",), "the live stream of your own model"),
    "serve-policy": Command(
        "worldmodel.policies.serving.server", "serve_policy", ("checkpoint",), "a policy for robots, over a WebSocket"
    ),
    "swap": Command("worldmodel.face.command", "swap", ("target",), "a video's faces for that of a reference picture"),
    "swap-demo": Command(
        "worldmodel.face.live.command", "swap_demo", ("target",), "swap faces live in the browser, or for programs"
    ),
    "face fetch": Command(FACE, "fetch_command", (), "get the published networks that swap uses"),
    "face consent": Command(FACE, "consent_command", ("reference",), "the record of consent that swap asks for"),
    "face gather": Command(
        "worldmodel.datasets.faces.gather", "gather_command", ("videos",), "aligned faces of videos, to train a swap on"
    ),
    "face reverse": Command(
        "worldmodel.datasets.faces.reverse", "reverse_command", ("faces",), "swapped inputs for gathered faces"
    ),
    "face manifest": Command(
        "worldmodel.datasets.faces.manifest", "manifest_command", ("videos",), "what a swap is evaluated on"
    ),
    "face verify": Command(FACE, "verify_command", ("video",), "check a swapped video's signed side file"),
    "doctor": Command("worldmodel.doctor", "main", (), "what works on this machine, and why not"),
}
GROUPS = ("evaluate", "face", "kernels")  # of commands with two words
RUN_MODELS = ("demo", "robot-demo", "trials", "rollout", "serve", "serve-policy", "swap", "swap-demo", "evaluate")
