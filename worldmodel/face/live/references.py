"""The allow-list of a server: pictures of people, each with its record of consent. A client names one, and brings none.

A folder holds NAME.jpg (.png, .webp, .bmp) and NAME.json, the record that `worldmodel face consent` writes, for every
person. Or a JSON file lists them, with paths as seen from the file:

    {"format": 1, "references": [{"name": "ann", "picture": "ann.jpg", "consent": "consents/ann.json"}]}

One that cannot be used refuses the whole list: who starts a server reads of it, no client has to.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worldmodel.errors import UserError
from worldmodel.face.consent import Consent, check_consent
from worldmodel.face.reading import IMAGES, decode_image
from worldmodel.serial import check_format, read_json

FORMAT = 1
MOST = 64  # references of one server
MAX_NAME = 64  # characters


@dataclass(frozen=True, slots=True)
class Reference:
    """A person who may be swapped in. name: by which clients ask for them."""

    name: str
    picture: Path
    consent: Path

    def load(self) -> tuple[Consent, NDArray[np.uint8]]:
        """The consent and the picture [H, W, 3] that it is for; a UserError if either is missing or has changed.

        The pixels come from the very bytes whose SHA-256 the record names.
        """
        agreed = check_consent(self.consent, self.picture)
        data = _read(self.picture)
        if hashlib.sha256(data).hexdigest() != agreed.reference_sha256:
            raise UserError(f"{self.picture}: has changed while it was read")
        return agreed, decode_image(data, str(self.picture))

    def check(self) -> Consent:
        """The consent as it is now; a UserError if the record is gone, was changed, or is for another picture."""
        return check_consent(self.consent, self.picture)


def allowed(place: Path) -> tuple[Reference, ...]:
    """The references of a folder or a JSON file, in the order of their names or of the file. Each consent is checked.

    A UserError that names the file for anything missing, doubled, broken or mismatching, and for an empty list.
    """
    if not place.exists():
        raise UserError(f"{place}: no such folder or file of references")
    found = _of_folder(place) if place.is_dir() else _of_file(place)
    if not found:
        raise UserError(f"{place}: no reference in it; a picture NAME.jpg needs its consent NAME.json beside it")
    if len(found) > MOST:
        raise UserError(f"{place}: {len(found)} references, at most {MOST} are served")
    names = [reference.name for reference in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{place}: two references have the name '{name}'")
        if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
            raise UserError(
                f"{place}: a reference's name has 1 to {MAX_NAME} printable characters, unlike {name!r:.80}"
            )
    for reference in found:
        reference.check()
    return found


def _of_folder(folder: Path) -> tuple[Reference, ...]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    pictures = [path for path in files if path.suffix.lower() in IMAGES]
    stems = {path.stem for path in pictures}
    for path in files:
        if path.suffix.lower() == ".json" and path.stem not in stems:
            raise UserError(f"{path}: a record of consent without the picture {path.stem}.jpg beside it")
    found = []
    for picture in pictures:
        consent = picture.with_suffix(".json")
        if not consent.is_file():
            raise UserError(f"{picture}: has no record of consent, {consent.name} is not beside it")
        found.append(Reference(picture.stem, picture, consent))
    return tuple(found)


def _of_file(path: Path) -> tuple[Reference, ...]:
    entries = check_format(read_json(path), FORMAT, path, ("references",))["references"]
    if not isinstance(entries, list):
        raise UserError(f"{path}: 'references' must be a list")
    found = []
    for number, entry in enumerate(entries):
        where = f"{path}: references[{number}]"
        if not isinstance(entry, dict) or set(entry) != {"name", "picture", "consent"}:
            raise UserError(f"{where}: must have the keys name, picture and consent, and no others")
        if not all(isinstance(value, str) for value in entry.values()):
            raise UserError(f"{where}: name, picture and consent must be texts")
        found.append(Reference(entry["name"], path.parent / entry["picture"], path.parent / entry["consent"]))
    return tuple(found)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: could not be read ({error.strerror})") from error
