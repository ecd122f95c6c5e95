"""A record of consent per reference: without one that fits, nothing runs.

It is a JSON file: which picture (its SHA-256), who is in it and what they agreed to, in words. The program can check
that a statement was made for this very picture, not that it is true.
"""

import datetime as dt
import hashlib
from dataclasses import dataclass
from pathlib import Path

from worldmodel.errors import UserError
from worldmodel.serial import check_format, read_json, write_json

FORMAT = 1
LEAST = 20  # letters of a statement


@dataclass(frozen=True, slots=True)
class Consent:
    """person: whose face it is. statement: what they agreed to, in a sentence. date: ISO 8601."""

    reference_sha256: str
    person: str
    statement: str
    date: str


def file_sha256(path: Path) -> str:
    """Of a file's content; a UserError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: could not be read ({error.strerror})") from error


def check_consent(path: Path | None, reference: Path) -> Consent:
    """The consent for a reference; a UserError if there is none, or if it is incomplete or for another picture."""
    if path is None:
        raise UserError(
            "swap needs --consent FILE, the record that the person in the reference agrees; "
            f"make one with: worldmodel face consent {reference} --person NAME --statement TEXT --out FILE"
        )
    data = check_format(read_json(path), FORMAT, path, ("reference_sha256", "person", "statement", "date"))
    values = {key: data[key] for key in ("reference_sha256", "person", "statement", "date")}
    for key, value in values.items():
        if not isinstance(value, str) or not value.strip():
            raise UserError(f"{path}: '{key}' must be a text that is not empty")
    _check_statement(values["statement"], str(path))
    if values["reference_sha256"] != file_sha256(reference):
        raise UserError(f"{path}: is the consent for another picture than {reference} (their SHA-256 differ)")
    return Consent(**values)


def write_consent(reference: Path, person: str, statement: str, out: Path) -> Consent:
    """Write the record for a picture."""
    if not person.strip():
        raise UserError("--person must name who is in the picture")
    _check_statement(statement, "--statement")
    if out.exists():
        raise UserError(f"{out} exists already: give a new file")
    today = dt.datetime.now(dt.UTC).date().isoformat()
    consent = Consent(file_sha256(reference), person.strip(), statement.strip(), today)
    record = {"format": FORMAT, "reference_sha256": consent.reference_sha256, "person": consent.person}
    write_json(record | {"statement": consent.statement, "date": consent.date}, out)
    return consent


def _check_statement(statement: str, where: str) -> None:
    if len(statement.strip()) < LEAST:
        raise UserError(f"{where}: the statement must say in a sentence ({LEAST} letters or more) what was agreed to")
