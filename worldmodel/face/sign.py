"""A signed side file: what was made of what, by a key of this user that is made on first use (Ed25519, RFC 8032).

It proves that the file has not changed since this key signed it. Who holds the key, it cannot prove.
"""

import base64
import json
import os
from pathlib import Path
from typing import Any

from worldmodel.errors import UserError
from worldmodel.face.consent import file_sha256
from worldmodel.serial import check_format, read_json, write_json

FORMAT = 1
NEEDS = "signing needs the package cryptography: pip install 'worldmodel[face]'"


def side_file(out: Path) -> Path:
    return out.with_name(f"{out.name}.provenance.json")


def key_file() -> Path:
    """$WORLDMODEL_KEY, or in the user's configuration folder."""
    if given := os.environ.get("WORLDMODEL_KEY"):
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "worldmodel" / "signing_key.pem"


def signing_key() -> Any:
    """The user's private key; made, for its owner's eyes only, if there is none. UserError if that cannot be."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise UserError(NEEDS) from error
    path = key_file()
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            content = Ed25519PrivateKey.generate().private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            partial = path.with_name(f".{path.name}.{os.getpid()}")
            handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            try:
                path.hardlink_to(partial)  # fails if another process was faster: then its key counts
            except FileExistsError:
                pass
            finally:
                partial.unlink()
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no key that can be read or made ({error})") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError(f"{path}: holds another kind of key than Ed25519")
    return key


def write_side_file(out: Path, facts: dict[str, Any], key: Any) -> Path:
    """Sign a finished file. facts: JSON data about how it was made."""
    path = side_file(out)
    write_json(signed({"format": FORMAT, "file": out.name, "sha256": file_sha256(out)} | facts, key), path)
    return path


def signed(content: dict[str, Any], key: Any) -> dict[str, Any]:
    """JSON data with its signature under "signed"."""
    from cryptography.hazmat.primitives import serialization

    public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    signature = {"kind": "Ed25519", "public_key": _text(public), "signature": _text(key.sign(_bytes(content)))}
    return {**content, "signed": signature}


def check_signed(data: dict[str, Any], where: str) -> dict[str, Any]:
    """What was signed, with the "public_key" of who signed it; a UserError if it has changed since. `where` names it in
    the error."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise UserError(NEEDS) from error
    content = {name: value for name, value in data.items() if name != "signed"}
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(data["signed"]["public_key"]))
        key.verify(base64.b64decode(data["signed"]["signature"]), _bytes(content))
    except (InvalidSignature, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{where}: the signature is not valid, it was changed after signing") from error
    return content | {"public_key": data["signed"]["public_key"]}


def check_side_file(out: Path) -> dict[str, Any]:
    """The facts of a signed file; a UserError if it, or the side file, is not as it was when it was signed."""
    path = side_file(out)
    content = check_signed(check_format(read_json(path), FORMAT, path, ("sha256", "signed")), str(path))
    if content["sha256"] != file_sha256(out):
        raise UserError(f"{out}: has changed since it was signed (SHA-256)")
    return content


def _bytes(content: dict[str, Any]) -> bytes:
    """The one way to write JSON data that is signed."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
