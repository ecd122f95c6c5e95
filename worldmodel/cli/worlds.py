"""Commands about worlds and models of them: record, generate, share, stream."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from worldmodel.cli.models import DOOM, DOOM_BASE, open_model
from worldmodel.errors import UserError
from worldmodel.options import check_range, check_seeds


def collect(
    world: str,
    out: Path,
    episodes: int = 20,
    frames: int = 500,
    seed: int = 0,
    size: int = 64,
    camera: str | None = None,
    policy: str | None = None,
    depth: bool = False,
    pose: tuple[float, ...] = (),
) -> int:
    """Record a simulated world as a LeRobotDataset v3.

    Example: worldmodel collect maze --episodes 50 --out data/maze

    Worlds: maze, maze/small, maze/large, maze/home, doom, doom/freedoom, metaworld/TASK, pusht, and for policies
    robot/TASK (a task of Meta-World under absolute targets of the hand) or robot/TASK+SHIFT, such as
    robot/reach+encoder-offset:0.03,0,0. Episode i has seed --seed + i. In maze and doom, --policy revisit turns away
    from views and comes back; for robots, --policy jolted shows how to come back. --pose 16 8 4 2 adds to every action
    the pose that it leads to, in waves of these lengths. Ctrl-C keeps what is done.
    """
    from worldmodel.datasets.collect import collect as record
    from worldmodel.datasets.worlds import open_world
    from worldmodel.datasets.worlds.base import WorldOptions

    opens: Any = open_world
    if world.startswith("robot/"):
        from worldmodel.policies.robot import open_robot as opens
    made = record(world, episodes, out, frames, seed, WorldOptions(size, camera, policy, depth), opens=opens, pose=pose)
    print(f"{out}: {len(made.episodes)} episodes, {made.frames} frames of {world}, policy {made.policy}")
    return 0 if made.stopped is None else 130


def rollout(
    checkpoint: Path,
    out: Path,
    data: Path | None = None,
    frames: int = 240,
    seed: int = 0,
    steps: int | None = None,
    scale: int = 4,
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """Generate a long video and write it as MP4.

    Example: worldmodel rollout demos/models/doom --frames 960 --out doom.mp4

    Without --data the model's own beginnings are continued under wandering actions. --data is a folder of latents: its
    held-out clips (of a single episode: any) give the beginning and the recorded actions. --frames counts latent
    frames, --steps the sampler's model calls per chunk, --scale enlarges the pictures. --threads: small models are
    fastest with one.
    """
    from worldmodel.datasets.latents import LatentClips
    from worldmodel.generate import write_rollout
    from worldmodel.pixels import check_video
    from worldmodel.sampler import with_steps

    check_range(1, frames=frames, steps=steps)
    check_range(1, 64, scale=scale)
    check_seeds(seed=seed)
    check_video(out)
    world = open_model(checkpoint, device, threads)
    sampler = world.stream.sampler if steps is None else with_steps(world.stream.sampler, steps)
    recording = None
    if data is not None:
        length = (-(-frames // world.dit.chunk) + 1 + sampler.lookahead) * world.dit.chunk
        clips = LatentClips(path=(data,), length=length, batch=4, actions=world.actions)
        single = len(clips.info.episodes) == 1  # of one episode, none can be held out
        recording = next(replace(clips, validation=0.0).batches())[0] if single else next(clips.validation_batches(1))
    write_rollout(world, recording, out, frames, seed, sampler, scale)
    print(out)
    return 0


def export(
    checkpoint: Path,
    out: Path,
    diffusers: bool = False,
    lerobot: bool = False,
    push: str | None = None,
    public: bool = False,
) -> int:
    """Write a trained model to a new folder, as ours or as diffusers or lerobot reads it, and upload it.

    Example: worldmodel export runs/wan_1_3b exported --diffusers

    --diffusers writes a WanTransformer3DModel (for models that came from one), action parts beside it. --lerobot writes
    a robot policy for lerobot-eval and lerobot-train, with processors and statistics. --push uploads
    the folder to the hub under that name ("owner/model"), private unless --public.
    """
    from worldmodel.folders import check_creatable
    from worldmodel.hub import push as upload
    from worldmodel.models.wan import export_wan

    if out.exists():
        raise UserError(f"{out} exists already: give a new folder")
    if diffusers and lerobot:
        raise UserError("export: give either --diffusers or --lerobot")
    check_creatable(out)
    if lerobot:
        from worldmodel.policies.lerobot_export import export_to_lerobot

        export_to_lerobot(checkpoint, out)
    elif diffusers:
        export_wan(open_model(checkpoint, "cpu", 1).dit, out)
    else:
        open_model(checkpoint, "cpu", 1).save(out)
    print(out if push is None else upload(out, push, private=not public))
    return 0


def demo(port: int = 8000, host: str = "127.0.0.1", token: str | None = None, open_browser: bool = False) -> int:
    """Drive the shipped world in the browser.

    Example: worldmodel demo

    The page can switch to the model that it was made from, under the same keys.
    """
    if not DOOM.is_dir():
        raise UserError(f"{DOOM}: the shipped model is not here; it is part of the repository, not of the wheel")
    name, also = ("forced", (f"base={DOOM_BASE}",)) if DOOM_BASE.is_dir() else (None, ())
    return serve(DOOM, port=port, host=host, token=token, open_browser=open_browser, real="doom", name=name, also=also)


def serve(
    checkpoint: Path,
    port: int = 8000,
    host: str = "127.0.0.1",
    token: str | None = None,
    max_sessions: int = 4,
    real: str | None = None,
    data: Path | None = None,
    open_browser: bool = False,
    device: str = "cpu",
    threads: int = 1,
    name: str | None = None,
    also: tuple[str, ...] = (),
) -> int:
    """Stream a world model live to browsers and programs.

    Example: worldmodel serve runs/maze_forced --also base=runs/maze --real maze

    --also NAME=FOLDER adds further models, between which the page switches under the same keys; --name is that of the
    first. A model that is given no name has that of its folder. All must have one tokenizer, chunk and action range.
    --real runs the simulator of that name beside the dream, under the same keys. --data gives recordings (a dataset or
    a folder of videos) whose frames a stream may start from. Any --host that is not loopback needs a --token.
    """
    from worldmodel.datasets.stage import frames_of, simulator
    from worldmodel.serve import serve as stream

    name = _name_of(checkpoint) if name is None else name
    others = _named(name, also)
    world = open_model(checkpoint, device, threads)
    return stream(
        world,
        name=name,
        also={other: open_model(folder, device, threads) for other, folder in others.items()},
        host=host,
        port=port,
        token=token,
        max_sessions=max_sessions,
        real=None if real is None else simulator(real, world),
        recordings=None if data is None else frames_of(data, world),
        open_browser=open_browser,
    )


def _named(first: str, also: tuple[str, ...]) -> dict[str, Path]:
    """Names and folders of `serve --also`; what stands before a "=" is a name unless it is part of a path."""
    named: dict[str, Path] = {}
    for each in also:
        name, sign, folder = each.partition("=")
        if not sign or "/" in name:
            name, folder = _name_of(Path(each)), each
        if name == first or name in named:
            raise UserError(f"--also {each}: another model has the name '{name}', give NAME=FOLDER with a new one")
        named[name] = Path(folder)
    return named


def _name_of(folder: Path) -> str:
    """What people call a model: the name of its folder, or of the run that made it."""
    folder = folder.resolve()
    return (folder.parent if folder.name == "model" else folder).name[:40].strip() or "world"
