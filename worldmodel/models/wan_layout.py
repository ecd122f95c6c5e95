"""How diffusers names, sizes and lays out the weights of Wan, and how we do."""

import importlib.metadata
from typing import Any, NamedTuple

import torch
from torch import Tensor

from worldmodel.errors import UserError

from .dit import DiTConfig

CLASS = "WanTransformer3DModel"

_FIXED = {  # what our arithmetic covers
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "image_dim": None,
    "added_kv_proj_dim": None,
    "pos_embed_seq_len": None,
}
_SIZES = (
    "patch_size", "num_attention_heads", "attention_head_dim", "in_channels", "out_channels", "text_dim", "freq_dim",
    "ffn_dim", "num_layers", "eps",
)  # fmt: skip


def dit_config(
    config: Any, where: str, *, size: tuple[int, int], chunk: int, actions: int, text_tokens: int = 0
) -> DiTConfig:
    """The DiTConfig of a diffusers config.json; what our arithmetic does not cover is a UserError."""
    kind = config.get("_class_name") if isinstance(config, dict) else None
    if kind != CLASS:
        raise UserError(f"{where}: describes {kind!r}, not a diffusers {CLASS}")
    for key in config:
        if not key.startswith("_") and key not in (*_FIXED, *_SIZES, "rope_max_seq_len"):
            raise UserError(f"{where}: unknown key '{key}'")
    for key in _SIZES:
        if key not in config:
            raise UserError(f"{where}: key '{key}' is missing")
    for key, value in _FIXED.items():
        if config.get(key, value) != value:
            image = "; image-to-video models are not supported" if value is None else ""
            raise UserError(f"{where}: {key} is {config[key]!r}, must be {value!r}{image}")
    if config["out_channels"] != config["in_channels"]:
        raise UserError(
            f"{where}: {config['in_channels']} channels in, {config['out_channels']} out; image-to-video models are "
            "not supported"
        )
    patch = list(config["patch_size"])
    if len(patch) != 3 or patch[0] != 1 or patch[1] != patch[2]:
        raise UserError(f"{where}: patch_size {patch} must be [1, p, p]")
    heads = config["num_attention_heads"]
    return DiTConfig(
        channels=config["in_channels"], size=size, patch=patch[1], chunk=chunk,
        dim=heads * config["attention_head_dim"], depth=config["num_layers"], heads=heads, hidden=config["ffn_dim"],
        mlp="gelu", actions=actions, text=config["text_dim"], text_tokens=text_tokens, rank=0,
        time_width=config["freq_dim"], learned_position=False, qk_norm="across_heads", pairing="interleaved",
        theta=10000.0, eps=config["eps"],
    )  # fmt: skip


def diffusers_config(cfg: DiTConfig) -> dict[str, Any]:
    """diffusers' config.json of a DiT with Wan's arithmetic; any other DiT is a UserError that names the field."""
    needed = {
        "mlp": "gelu", "rank": 0, "learned_position": False, "anchor": False, "condition": 0,
        "qk_norm": "across_heads",
        "pairing": "interleaved", "theta": 10000.0,
    }  # fmt: skip
    for name, value in needed.items():
        if getattr(cfg, name) != value:
            raise UserError(f"not a Wan model: {name} is {getattr(cfg, name)!r}, diffusers' {CLASS} has {value!r}")
    if not cfg.text:
        raise UserError(f"not a Wan model: text is 0, diffusers' {CLASS} always attends to text")
    return {
        "_class_name": CLASS,
        "_diffusers_version": importlib.metadata.version("diffusers"),
        "patch_size": [1, cfg.patch, cfg.patch],
        "num_attention_heads": cfg.heads,
        "attention_head_dim": cfg.dim // cfg.heads,
        "in_channels": cfg.channels,
        "out_channels": cfg.channels,
        "text_dim": cfg.text,
        "freq_dim": cfg.time_width,
        "ffn_dim": cfg.hidden,
        "num_layers": cfg.depth,
        "eps": cfg.eps,
        "rope_max_seq_len": 1024,
        **_FIXED,
    }


class Entry(NamedTuple):
    """One of our parameters and the diffusers tensors that it is made of; several are stacked along axis 0."""

    ours: str
    theirs: tuple[str, ...]


def entries(cfg: DiTConfig) -> list[Entry]:
    """Every parameter that a Wan model brings."""
    embedder = "condition_embedder"
    modules = [
        ("patch_in", "patch_embedding"),
        ("time.0", f"{embedder}.time_embedder.linear_1"),
        ("time.2", f"{embedder}.time_embedder.linear_2"),
        ("shared", f"{embedder}.time_proj"),
        ("text.0", f"{embedder}.text_embedder.linear_1"),
        ("text.2", f"{embedder}.text_embedder.linear_2"),
        ("patch_out", "proj_out"),
    ]
    norms = []
    for block in (f"blocks.{i}" for i in range(cfg.depth)):
        own, cross = f"{block}.attn1", f"{block}.attn2"
        modules += [
            (f"{block}.qkv", f"{own}.to_q", f"{own}.to_k", f"{own}.to_v"),
            (f"{block}.out", f"{own}.to_out.0"),
            (f"{block}.cross.norm", f"{block}.norm2"),
            (f"{block}.cross.q", f"{cross}.to_q"),
            (f"{block}.cross.kv", f"{cross}.to_k", f"{cross}.to_v"),
            (f"{block}.cross.out", f"{cross}.to_out.0"),
            (f"{block}.mlp.up", f"{block}.ffn.net.0.proj"),
            (f"{block}.mlp.down", f"{block}.ffn.net.2"),
        ]
        for ours, theirs in ((block, own), (f"{block}.cross", cross)):
            norms += [Entry(f"{ours}.{n}.weight", (f"{theirs}.{n}.weight",)) for n in ("norm_q", "norm_k")]
        norms.append(Entry(f"{block}.table", (f"{block}.scale_shift_table",)))
    both = [
        Entry(f"{ours}.{leaf}", tuple(f"{name}.{leaf}" for name in theirs))
        for ours, *theirs in modules
        for leaf in ("weight", "bias")
    ]
    return [*both, *norms, Entry("table_out", ("scale_shift_table",))]


def to_ours(entry: Entry, tensors: list[Tensor], cfg: DiTConfig) -> Tensor:
    """Our parameter from diffusers' tensors."""
    (first, *rest), p = tensors, cfg.patch
    if rest:
        return torch.cat(tensors)
    if entry.ours == "patch_in.weight":  # a convolution [D, C, 1, p, p]
        return first.flatten(1)
    if entry.ours.startswith("patch_out."):  # rows of a patch: theirs (p, p, C), ours (C, p, p)
        return first.unflatten(0, (p, p, -1)).movedim(2, 0).flatten(0, 2)
    if entry.ours.endswith(("table", "table_out")):  # [1, 6 or 2, D]
        return first.squeeze(0)
    return first


def to_theirs(entry: Entry, tensor: Tensor, cfg: DiTConfig) -> tuple[Tensor, ...]:
    """Diffusers' tensors, as views where possible, from our parameter: the inverse of `to_ours`."""
    p = cfg.patch
    if len(entry.theirs) > 1:
        return tensor.chunk(len(entry.theirs))
    if entry.ours == "patch_in.weight":
        return (tensor.unflatten(1, (-1, 1, p, p)),)
    if entry.ours.startswith("patch_out."):
        return (tensor.unflatten(0, (-1, p, p)).movedim(0, 2).flatten(0, 2),)
    if entry.ours.endswith(("table", "table_out")):
        return (tensor[None],)
    return (tensor,)
