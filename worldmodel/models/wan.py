"""Wan's pretrained video transformers: a diffusers `WanTransformer3DModel` as our DiT, and back.

With one chunk that covers the whole clip, the loaded model computes what diffusers computes (flow time t is diffusers'
timestep / 1000). With shorter chunks it is the same arithmetic under a block-causal mask: the starting point for an
action-conditioned streaming world model. The action parts are new; their last layers are zero, so that actions change
nothing until they are trained.

Text-to-video models only: Wan 2.1 T2V 1.3B and 14B, each expert of Wan 2.2 T2V A14B, Wan 2.2 TI2V 5B.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor, nn

from worldmodel.errors import UserError
from worldmodel.serial import read_json
from worldmodel.weights import read_tensors, write_tensors

from .diffusers_folder import FolderTensors, resolve
from .dit import DiT, DiTConfig
from .wan_layout import CLASS, diffusers_config, dit_config, entries, to_ours, to_theirs

FORMAT = 1
EXTRA, NOTE = "worldmodel_extra.safetensors", "worldmodel.json"  # beside the diffusers files, ignored by diffusers
EXTRA_PARTS = ("action_in.", "null_action", "action_out.", "action_modulation.", "default_text")


def load_wan(
    source: Path | str,
    *,
    size: tuple[int, int],
    chunk: int,
    actions: int,
    text: Tensor | None = None,
    text_tokens: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    subfolder: str = "transformer",
    revision: str | None = None,
) -> DiT:
    """Wan's weights in a DiT.

    source: a transformer's folder, a pipeline's folder, or a name on the hub such as "org/model" (HF_HUB_OFFLINE is
    honoured). size: the latent's (H, W). chunk: latent frames per chunk. actions: packed action size, 0 for none. text:
    features [L, text width] that the model uses wherever a control brings none (see text.py); text_tokens: L without
    them, for a text of zeros, which is how Wan pads. dtype, device: of the weights; they are converted one by one, so
    that memory never holds the model twice. subfolder, revision: which transformer of a pipeline, which version on the
    hub.

    A folder written by `export_wan` also brings back its action parts and text. Anything missing, unknown, truncated,
    pickled, not finite or of another kind of model is a UserError that names it.
    """
    folder = resolve(source, subfolder, revision)
    path = folder / "config.json"
    extra = read_tensors(folder / EXTRA) if (folder / EXTRA).exists() else {}
    if text is not None:
        extra["default_text"] = text
    tokens = len(extra["default_text"]) if "default_text" in extra else text_tokens
    cfg = dit_config(read_json(path), str(path), size=size, chunk=chunk, actions=actions, text_tokens=tokens)
    if text is not None and text.shape != (tokens, cfg.text):
        raise UserError(f"text features have shape {list(text.shape)}, {source} takes [tokens, {cfg.text}]")
    if text_tokens not in (0, tokens):
        raise UserError(f"{source}: its text has {tokens} tokens, text_tokens is {text_tokens}")
    with torch.device("meta"):
        dit = DiT(cfg)
    shapes = {name: p.shape for name, p in dit.named_parameters()}
    new = {name: _fresh(name, shape) for name, shape in shapes.items() if name.startswith(EXTRA_PARTS)}
    for name in extra.keys() - new.keys():
        raise UserError(f"{folder / EXTRA}: weight '{name}' has no place in a model with actions of size {actions}")

    files = FolderTensors(folder, skip=(EXTRA,))
    _check_names(files, cfg, folder)
    weights = {}
    for entry in entries(cfg):
        tensor = to_ours(entry, [files.read(name) for name in entry.theirs], cfg)
        _check(tensor, shapes[entry.ours], f"{files.place(entry.theirs[0])}: weight '{entry.theirs[0]}'")
        weights[entry.ours] = tensor.to(device, dtype, copy=True)
    for name, tensor in (new | extra).items():
        _check(tensor, shapes[name], f"{folder / EXTRA}: weight '{name}'")
        weights[name] = tensor.detach().to(device, dtype, copy=True)
    dit.load_state_dict(weights, assign=True)
    return dit


def export_wan(dit: DiT, folder: Path, max_shard_size: str = "5GB") -> None:
    """Write a new folder that diffusers' `WanTransformer3DModel.from_pretrained` loads and `load_wan` reads back.

    What diffusers has no place for (action parts, the model's own text) goes into a file of its own beside it, with a
    note. A model that is not Wan's arithmetic, holds adapters that are not merged, or a folder that already holds
    something, is a UserError. Host memory holds one shard at a time.
    """
    config = diffusers_config(dit.cfg)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: already holds something; export into a new folder")
    own: dict[str, Tensor] = dict(dit.named_parameters())
    extra = {name: own.pop(name) for name in list(own) if name.startswith(EXTRA_PARTS)}
    for name in own.keys() - {entry.ours for entry in entries(dit.cfg)}:
        raise UserError(f"weight '{name}' has no place in a diffusers model; merge adapters before the export")

    beside = folder.with_name(f"{folder.name}.partial")  # renamed when complete
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    _write_json(config, beside / "config.json")
    if extra:
        write_tensors(extra, beside / EXTRA)
    note = {
        "format": FORMAT,
        "kind": "wan export",
        "note": f"fine-tuned as a world model; {EXTRA} holds what diffusers does not know",
        "size": list(dit.cfg.size),
        "chunk": dit.cfg.chunk,
        "actions": dit.cfg.actions,
        "text_tokens": dit.cfg.text_tokens,
    }
    _write_json(note, beside / NOTE)
    _write_shards(dit, own, beside, max_shard_size)
    beside.replace(folder)


def _write_shards(dit: DiT, own: dict[str, Tensor], folder: Path, max_shard_size: str) -> None:
    with torch.no_grad():
        source = {name: (entry, i) for entry in entries(dit.cfg) for i, name in enumerate(entry.theirs)}
        sketch = {name: to_theirs(entry, own[entry.ours].to("meta"), dit.cfg)[i] for name, (entry, i) in source.items()}
        plan = split_torch_state_dict_into_shards(
            sketch,
            filename_pattern="diffusion_pytorch_model{suffix}.safetensors",
            max_shard_size=max_shard_size,
        )
        for file, names in plan.filename_to_tensors.items():
            parts = {name: to_theirs(source[name][0], own[source[name][0].ours], dit.cfg) for name in names}
            tensors = {name: parts[name][source[name][1]].cpu().clone() for name in names}
            save_file(tensors, folder / file, {"format": "pt"})
        if plan.is_sharded:
            index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
            _write_json(index, folder / "diffusion_pytorch_model.safetensors.index.json")


def _write_json(value: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _check_names(files: FolderTensors, cfg: DiTConfig, folder: Path) -> None:
    known = {name for entry in entries(cfg) for name in entry.theirs}
    for name in sorted(files.names - known):
        if "image_embedder" in name or "add_k_proj" in name or "add_v_proj" in name or "norm_added" in name:
            raise UserError(f"{files.place(name)}: '{name}' belongs to an image-to-video model, which is not supported")
        raise UserError(f"{files.place(name)}: unknown weight '{name}': not a diffusers {CLASS} of this size")
    for name in sorted(known - files.names):
        raise UserError(f"{folder}: weight '{name}' is missing")


def _check(tensor: Tensor, shape: torch.Size, where: str) -> None:
    if tensor.shape != shape:
        raise UserError(f"{where} gives shape {list(tensor.shape)}, the model expects {list(shape)}")
    if not torch.isfinite(tensor).all():
        raise UserError(f"{where} holds values that are not finite")


def _fresh(name: str, shape: torch.Size) -> Tensor:
    """A new action part as DiT starts it: a Xavier-uniform first layer, zeros after it."""
    tensor = torch.zeros(shape)
    return nn.init.xavier_uniform_(tensor) if name == "action_in.0.weight" else tensor
