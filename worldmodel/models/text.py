"""Text features for models with text cross-attention: UMT5, as Wan's pipelines use it.

    from pathlib import Path
    from worldmodel.models.text import write_text

    write_text("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "first-person view of a maze", Path("text.safetensors"))

The encoder is larger than a 1.3 B video model and is needed once: its features go into a file, and from there into the
model (`text` of a run, or of `load_wan`).
"""

import html
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worldmodel.errors import UserError
from worldmodel.weights import read_tensors, write_tensors

TOKENS = 512  # Wan was trained with texts padded to this length


def encode_text(
    source: Path | str,
    prompts: list[str],
    *,
    tokens: int = TOKENS,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Features [P, tokens, D] of P prompts: the encoder's last layer, zeros beyond each prompt's end token.

    source: folder or hub name of a diffusers pipeline with `tokenizer` and `text_encoder` (HF_HUB_OFFLINE is honoured).
    Prompts are cleaned as Wan's pipelines do (HTML entities, white space) and cut at `tokens`. dtype: of the encoder.
    """
    from transformers import AutoTokenizer, UMT5EncoderModel  # slow to import, and only needed here

    where = str(source)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(where, subfolder="tokenizer")
        encoder: Any = UMT5EncoderModel.from_pretrained(
            where, subfolder="text_encoder", dtype=dtype, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{source}: no tokenizer/ and text_encoder/ of a UMT5 in safetensors ({reason})") from error
    words = tokenizer(
        [_clean(prompt) for prompt in prompts],
        padding="max_length",
        max_length=tokens,
        truncation=True,
        return_tensors="pt",
    ).to(device)
    with torch.no_grad():
        features = encoder.eval().to(device)(words.input_ids, words.attention_mask).last_hidden_state
    return features.masked_fill(words.attention_mask[..., None] == 0, 0).cpu()


def write_text(
    source: Path | str,
    prompt: str,
    out: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> None:
    """Encode one prompt into a safetensors file, with the prompt beside it in the file's metadata."""
    features = encode_text(source, [prompt], dtype=dtype, device=device)[0]
    write_tensors({"text": features}, out, {"prompt": prompt})


def read_text(path: Path) -> Tensor:
    """Features [tokens, D] in fp32 from a file of `write_text`; anything else is a UserError that names it."""
    tensors = read_tensors(path)
    if tensors.keys() != {"text"} or tensors["text"].ndim != 2:
        raise UserError(f"{path}: holds {sorted(tensors)}, not the features of a text")
    return tensors["text"].float()


def _clean(prompt: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(html.unescape(prompt))).strip()
