"""Low-rank adapters: y = W x + b + (alpha / rank) B A x with W frozen (Hu et al., 2106.09685, "LoRA").

    adapted = add_lora(model, config)        # shares the frozen weights with `model`
    ... train what requires a gradient ...
    save_lora(adapted, config, path)         # megabytes; load_lora(model, path) is its inverse
    plain = merge_lora(adapted)              # a model without adapters: to stream, save or export

Adapters keep the names of the layers that they adapt: a layer's `weight` and `bias` stay where they are, `lora_a` and
`lora_b` are added beside them. Action parts are new in a pretrained model, so they are trained in full.
"""

import copy
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodel.errors import UserError
from worldmodel.serial import from_json, to_json
from worldmodel.weights import check_tensors, read_metadata, read_tensors, write_tensors

FORMAT = 1
ACTION_PARTS = ("action_in", "null_action", "action_out", "action_modulation")


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """rank and alpha of every adapter; targets: which linear layers get one; train: further parts trained in full.

    In a name, * stands for one part between dots: "blocks.*.out" is no "blocks.0.cross.out". A name in `train` covers
    everything below it. A pattern that fits nothing is a UserError.
    """

    rank: int = 16
    alpha: float = 16.0
    targets: tuple[str, ...] = ("blocks.*.qkv", "blocks.*.out", "blocks.*.mlp.up", "blocks.*.mlp.down")
    train: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rank < 1 or not math.isfinite(self.alpha) or self.alpha <= 0:
            raise UserError(f"lora: rank {self.rank} must be at least 1 and alpha {self.alpha} above 0")

    def trains(self, name: str) -> bool:
        """Whether the parameter of this name is trained."""
        return name.endswith((".lora_a", ".lora_b")) or any(_fits(p, name, True) for p in (*ACTION_PARTS, *self.train))


def _fits(pattern: str, name: str, below: bool) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", r"[^.]+") + (r"(\..+)?" if below else ""), name) is not None


class LoraLinear(nn.Linear):
    """A linear layer with frozen weight and bias, which it shares, and an adapter in fp32, which starts as zero."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__(base.in_features, base.out_features, base.bias is not None, device="meta")
        self.weight, self.bias, self.scale = base.weight, base.bias, alpha / rank
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features, device=base.weight.device))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] -> [..., out], in the type of the frozen layer's output."""
        y = F.linear(input, self.weight, self.bias)
        if torch.is_autocast_enabled(input.device.type):  # which casts for us, without fp32 copies
            return y + F.linear(self.scale * F.linear(input, self.lora_a), self.lora_b)
        low = self.scale * F.linear(input.to(self.lora_a.dtype), self.lora_a)
        return y + F.linear(low, self.lora_b).to(y.dtype)

    def merged(self) -> nn.Linear:
        """The plain layer with the same output."""
        plain = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        delta = self.scale * (self.lora_b.detach() @ self.lora_a.detach())
        plain.weight = nn.Parameter((self.weight.detach().float() + delta).to(self.weight.dtype))
        plain.bias = self.bias
        return plain


def add_lora[M: nn.Module](model: M, config: LoraConfig) -> M:
    """A model with adapters on the layers that `config.targets` names; its output is still that of `model`.

    Frozen weights share their storage with `model`, which stays as it is; what is trained is its own, and in fp32 even
    if `model` is in bf16 (train under autocast). Adapted models and patterns that fit nothing are UserErrors.
    """
    if any(isinstance(module, LoraLinear) for module in model.modules()):
        raise UserError("lora: this model has adapters already; merge them first")
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    params = [name for name, _ in model.named_parameters()]
    for pattern in config.targets:
        if not any(_fits(pattern, name, False) for name in linear):
            raise UserError(f"lora: target '{pattern}' is no linear layer of this model, which has {_kinds(linear)}")
    for pattern in config.train:
        if not any(_fits(pattern, name, True) for name in params):
            raise UserError(f"lora: '{pattern}' in train is no part of this model")
    adapted = _share(model, {name for name in params if config.trains(name)}, torch.float32)
    for name, module in list(adapted.named_modules()):
        if isinstance(module, nn.Linear) and any(_fits(pattern, name, False) for pattern in config.targets):
            _replace(adapted, name, LoraLinear(module, config.rank, config.alpha))
    for name, p in adapted.named_parameters():
        p.requires_grad_(config.trains(name))
    return adapted


def merge_lora[M: nn.Module](model: M) -> M:
    """The plain model with the same output: names, shapes and types as before `add_lora`, everything trainable.

    Weights without an adapter share their storage with `model` where they are frozen there. bf16 weights are too coarse
    to hold a small adapter: merge into fp32.
    """
    dtype = next((m.weight.dtype for m in model.modules() if isinstance(m, LoraLinear)), None)
    if dtype is None:
        raise UserError("lora: this model has no adapters to merge")
    plain = _share(model, {name for name, p in model.named_parameters() if p.requires_grad}, dtype)
    for name, module in list(plain.named_modules()):
        if isinstance(module, LoraLinear):
            _replace(plain, name, module.merged())
    return plain.requires_grad_(True)


def lora_state_dict(model: nn.Module, config: LoraConfig) -> dict[str, Tensor]:
    """What the training of an adapted model changes: adapters and the parts trained in full."""
    return {name: tensor for name, tensor in model.state_dict().items() if config.trains(name)}


def save_lora(model: nn.Module, config: LoraConfig, path: Path) -> None:
    """Write `lora_state_dict` to one safetensors file that also holds the configuration."""
    about = {"format": FORMAT, "kind": "lora", "config": to_json(config)}
    write_tensors(lora_state_dict(model, config), path, {"worldmodel": json.dumps(about)})


def load_lora[M: nn.Module](model: M, path: Path) -> tuple[M, LoraConfig]:
    """The adapted model, on the device of `model`, and its configuration, from a file of `save_lora`.

    A file that is missing, broken, newer, something else, or of another model is a UserError that names it.
    """
    about = json.loads(read_metadata(path).get("worldmodel", "null"))
    if not isinstance(about, dict) or about.get("kind") != "lora":
        raise UserError(f"{path}: no adapters of this project")
    if about["format"] > FORMAT:
        raise UserError(f"{path}: format {about['format']} is newer than {FORMAT}, which this version reads")
    config = from_json(about["config"], LoraConfig, f"{path}: config")
    adapted = add_lora(model, config)
    tensors = read_tensors(path)
    check_tensors(tensors, lora_state_dict(adapted, config), str(path))
    adapted.load_state_dict(tensors, strict=False)
    return adapted, config


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


def _share[M: nn.Module](model: M, own: set[str], dtype: torch.dtype) -> M:
    """A copy of the modules that shares parameters and buffers, except those named in `own`: copied, as `dtype`."""
    memo: dict[int, Tensor] = {id(b): b for b in model.buffers()}
    for name, p in model.named_parameters():
        data = p.detach().to(dtype, copy=True) if name in own else p.detach()
        memo[id(p)] = nn.Parameter(data, requires_grad=p.requires_grad)
    return copy.deepcopy(model, memo)


def _kinds(names: list[str]) -> list[str]:
    return sorted({re.sub(r"\.\d+\.", ".*.", name) for name in names})
