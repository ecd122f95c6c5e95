"""Open any tokenizer by its folder or name."""

from pathlib import Path

from worldmodel.errors import UserError
from worldmodel.models.autoencoder import Autoencoder, AutoencoderConfig
from worldmodel.models.pixel_tokenizer import PixelTokenizer, PixelTokenizerConfig
from worldmodel.models.tokenizer import CONFIG_FILE, Tokenizer, read_config, refuse_pickle
from worldmodel.serial import from_json


def load_tokenizer(name: str | Path, subfolder: str | None = None) -> Tokenizer:
    """Load any tokenizer from a folder, or a diffusers one from the hub.

    The folder's `config.json` says what it holds: `"type": "AutoencoderConfig"` is ours, a diffusers `"_class_name"` is
    one of `AutoencoderKLWan`, `AutoencoderKL` and `AutoencoderTiny`. Weights are read from safetensors files only.
    The name "pixels" gives the tokenizer that leaves pixels as they are.

    Args:
        name: a local folder, that of a run that trained one, "pixels", or a hub name "owner/model" if there is no such
            folder.
        subfolder: where the autoencoder lies inside it ("vae" in a diffusers pipeline).

    Raises:
        UserError: no such folder or hub model, no or broken `config.json`, an unknown kind, pickled, missing, truncated
            or unfitting weights; the message names the file.
    """
    if str(name) == "pixels":
        return PixelTokenizer(PixelTokenizerConfig())
    folder = Path(name)
    if folder.is_file():
        refuse_pickle(folder)
        raise UserError(f"{folder}: a tokenizer is a folder with {CONFIG_FILE}, this is a file")
    if not folder.is_dir():
        # diffusers takes seconds to import: worlds with our own autoencoder do without it
        from worldmodel.models.diffusers_tokenizer import download

        folder = download(str(name), subfolder)
    elif subfolder is not None:
        folder = folder / subfolder
    if not (folder / CONFIG_FILE).exists() and (folder / "model" / CONFIG_FILE).exists():
        folder = folder / "model"  # what a run in this folder has made
    config = read_config(folder)
    if config.get("type") == AutoencoderConfig.__name__:
        return Autoencoder.load(folder)
    if config.get("type") == PixelTokenizerConfig.__name__:
        return PixelTokenizer(from_json(config, PixelTokenizerConfig, str(folder / CONFIG_FILE)))
    if "_class_name" in config:
        from worldmodel.models.diffusers_tokenizer import load_diffusers

        return load_diffusers(folder)
    raise UserError(f"{folder / CONFIG_FILE}: this is not the configuration of a tokenizer")
