"""A folder is replaced as a whole; one training at a time writes to a run's folder."""

import pytest
from tiny import FROM_CLEAN

from worldmodel.errors import UserError
from worldmodel.folders import alone, check_creatable, check_outputs, replaced

NAMES = ("config", "weights")


def content(folder):
    return {p.name: p.read_text() for p in folder.iterdir()}


def fill(folder, text, *names):
    for name in names:
        (folder / name).write_text(text)


def test_replaced_as_a_whole(tmp_path):
    folder = tmp_path / "a" / "w"
    with replaced(folder, NAMES) as beside:
        fill(beside, "old", "config", "weights")
    (folder / "notes").write_text("mine")
    with replaced(folder, NAMES) as beside:
        fill(beside, "new", "config")
        assert content(folder) == {"config": "old", "weights": "old", "notes": "mine"}
    assert content(folder) == {"config": "new", "notes": "mine"}
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["w"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), UserError("no"), KeyError("x")])
def test_an_error_leaves_what_was_there(error, tmp_path):
    fill(tmp_path, "old", *NAMES)
    with pytest.raises((UserError, KeyError)), replaced(tmp_path, NAMES) as beside:
        fill(beside, "new", "weights")
        raise error
    assert content(tmp_path) == {"config": "old", "weights": "old"}


@pytest.mark.parametrize("moment", [1, 2])
def test_killed_between_the_renames(moment, tmp_path, monkeypatch):
    """What was complete before is complete after the next write, and files of other names are still there."""
    folder, renames, rename = tmp_path / "w", [], type(tmp_path).rename
    folder.mkdir()
    fill(folder, "old", *NAMES, "notes")

    def dying(self, to):
        renames.append(to)
        if len(renames) > moment:
            raise KeyboardInterrupt
        return rename(self, to)

    monkeypatch.setattr(type(tmp_path), "rename", dying)
    with pytest.raises(KeyboardInterrupt), replaced(folder, NAMES) as beside:
        fill(beside, "new", *NAMES)
    monkeypatch.undo()
    with replaced(folder, NAMES) as beside:
        fill(beside, "newer", *NAMES)
    assert content(folder) == {"config": "newer", "weights": "newer", "notes": "old"}
    assert [p.name for p in tmp_path.iterdir()] == ["w"]


def hold(out, held, done):
    with alone(out):
        held.set()
        done.wait(60)


def test_one_training_at_a_time(tmp_path):
    held, done = FROM_CLEAN.Event(), FROM_CLEAN.Event()
    process = FROM_CLEAN.Process(target=hold, args=(tmp_path / "run", held, done))
    process.start()
    assert held.wait(60)
    with pytest.raises(UserError, match=r"another process writes to .*run: wait for its end"), alone(tmp_path / "run"):
        pass
    process.kill()
    process.join()
    for _ in range(2):  # free after a kill, and after a proper end
        with alone(tmp_path / "run"):
            pass


def test_where_nothing_can_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    check_creatable(tmp_path / "a" / "b")
    with pytest.raises(UserError, match=r"file/b: cannot be made, .*file is no folder"):
        check_creatable(tmp_path / "file" / "b")
    with pytest.raises(UserError, match="file/b: cannot be made"), alone(tmp_path / "file" / "b"):
        pass


def test_outputs_are_tried_before_the_work(tmp_path):
    check_outputs(None, tmp_path / "a" / "b", None, file=tmp_path / "c" / "numbers.json")
    assert not list(tmp_path.iterdir())
    (tmp_path / "a").mkdir()
    check_outputs(tmp_path / "a" / "b", tmp_path / "a")
    assert not list((tmp_path / "a").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/x: could not be made \(Not a directory\)"):
        check_outputs(tmp_path / "file" / "x")
    with pytest.raises(UserError, match=r"file: could not be made"):
        check_outputs(None, file=tmp_path / "file" / "numbers.json")
    with pytest.raises(UserError, match="a: is a folder; give the name of a file"):
        check_outputs(file=tmp_path / "a")
