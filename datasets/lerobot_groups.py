"""Groups of episodes that join a LeRobotDataset v3 whole or not at all, so that a killed process loses one at most.

A parquet file has no footer until it is closed, and lerobot reads no dataset that holds such a file. So the episodes of
a group are written to a dataset of their own inside the folder, `.group.part`, which goes on with the numbers of the
episodes before. Once it is finalised it is renamed to `.group`: from this moment on it counts. Then its files are
renamed to their places, info.json last; whatever a kill leaves undone of that, `recover` does.
"""

import shutil
from pathlib import Path

import pyarrow.parquet as pq

from worldmodel.folders import sync

LOCK, PART, WHOLE = ".lock", ".group.part", ".group"
INFO = Path("meta") / "info.json"
EPISODES = Path("meta") / "episodes"
COPIED = (INFO, Path("meta") / "stats.json", Path("meta") / "tasks.parquet")


def is_untouched(folder: Path) -> bool:
    """Whether nothing lies in the folder but what a writer makes, and drops, before its first group is finished."""
    return folder.is_dir() and {path.name for path in folder.iterdir()} <= {LOCK, PART}


def newest(folder: Path, name: Path) -> Path:
    """Where the newest version of a file of the dataset lies: perhaps still with a group that is to join."""
    return folder / WHOLE / name if (folder / WHOLE / name).is_file() else folder / name


def is_begun(folder: Path) -> bool:
    """Whether a group of episodes lies in the folder that is not yet part of the dataset."""
    return (folder / PART).is_dir() or (folder / WHOLE).is_dir()


def recover(folder: Path) -> None:
    """After a kill: a group that was finished joins the dataset, one that was not is removed."""
    shutil.rmtree(folder / PART, ignore_errors=True)
    if (folder / WHOLE).is_dir():
        _join(folder)


def begin_after(folder: Path) -> Path:
    """Make `.group.part` such that `LeRobotDataset.resume` there goes on with the numbers of the folder's dataset.

    That takes the description and the row of the last episode, which `finish` leaves out again.
    """
    part = folder / PART
    for name in COPIED:
        (part / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / name, part / name)
    newest = _newest_episodes(folder)
    rows = pq.ParquetFile(newest).read()
    columns = [name for name in rows.column_names if not name.startswith("stats/")]
    place = part / newest.relative_to(folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.select(columns).slice(len(rows) - 1), place)
    return part


def finish(folder: Path) -> None:
    """The finalised group in `.group.part` joins the dataset in `folder`, which may be its first."""
    part = folder / PART
    if (folder / INFO).is_file():
        (part / _newest_episodes(folder).relative_to(folder)).unlink()
    for path in [*part.rglob("*"), part]:
        sync(path)
    part.rename(folder / WHOLE)
    sync(folder)
    _join(folder)


def _join(folder: Path) -> None:
    group = folder / WHOLE
    files = [path.relative_to(group) for path in group.rglob("*") if path.is_file()]
    # What refers to nothing comes first. Until info.json counts them, nobody looks at the new files.
    order = sorted(files, key=lambda name: (name == INFO, name.parts[0] == "meta", EPISODES not in name.parents, name))
    for name in order:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (group / name).replace(folder / name)
        sync((folder / name).parent)
    shutil.rmtree(group)


def _newest_episodes(folder: Path) -> Path:
    return max((folder / EPISODES).glob("*/*.parquet"))
