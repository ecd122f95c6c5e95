"""A report on disk: its numbers as JSON, and all of it as one HTML file."""

from pathlib import Path

from worldmodel.errors import UserError
from worldmodel.evaluate.page import png, render
from worldmodel.evaluate.report import Report
from worldmodel.folders import make_folder
from worldmodel.pixels import enlarge
from worldmodel.serial import write_json, write_text


def write(report: Report, json: Path | None = None, html: Path | None = None) -> None:
    """Write either file or both. A folder that does not exist is made; a full disk is a UserError."""
    for path in (json, html):
        if path is not None:
            make_folder(path.parent)
    if json is not None:
        write_json(report.to_json(), json)
    if html is not None:
        write_text(render(report), html)


def write_pictures(report: Report, folder: Path, name: str) -> None:
    """The pictures of a report as NAME1.png, NAME2.png, ...; errors as those of `write`."""
    make_folder(folder)
    for number, picture in enumerate(report.pictures):
        path = folder / f"{name}{number + 1}.png"
        try:
            path.write_bytes(png(enlarge(picture.frame, picture.scale)))
        except OSError as error:
            raise UserError(f"{path}: could not be written ({error.strerror or error})") from error
