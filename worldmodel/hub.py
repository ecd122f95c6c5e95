"""Share a model folder on the Hugging Face hub."""

from pathlib import Path

import httpx
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import HFValidationError

from worldmodel.errors import UserError


def push(folder: Path, name: str, private: bool = True) -> str:
    """Upload a folder as the model repository `name` ("owner/model"), made if needed; returns its address.

    A name, token or network that does not work is a UserError that says which.
    """
    api = HfApi()
    try:
        address = api.create_repo(name, exist_ok=True, private=private)
        api.upload_folder(folder_path=folder, repo_id=name, commit_message="Upload model")
    except (
        HfHubHTTPError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
        HFValidationError,
        httpx.HTTPError,
    ) as error:
        raise UserError(f"{name}: could not be uploaded ({error})") from error
    return str(address)
