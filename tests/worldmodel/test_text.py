"""diffusers' WanPipeline is the oracle for text features."""

import pytest
import torch
from diffusers import WanPipeline
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from worldmodel.errors import UserError
from worldmodel.models.text import encode_text, read_text, write_text
from worldmodel.weights import read_metadata

PROMPTS = ["a  maze &amp; walls", "", "walls walls walls a maze walls walls walls walls walls a maze a maze"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A tiny random text encoder and a tokenizer of whole words, as a pipeline's folder."""
    folder = tmp_path_factory.mktemp("pipeline")
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "maze": 4, "walls": 5, "&": 6}
    core = Tokenizer(models.WordLevel(words, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    torch.manual_seed(0)
    config = UMT5Config(vocab_size=7, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0.0)
    encoder = UMT5EncoderModel(config).eval()
    tokenizer.save_pretrained(folder / "tokenizer")
    encoder.save_pretrained(folder / "text_encoder")
    return folder, tokenizer, encoder


def test_features_equal_those_of_diffusers(parts):
    folder, tokenizer, encoder = parts
    pipeline = WanPipeline(tokenizer, encoder, vae=None, scheduler=None, transformer=None)
    with torch.no_grad():
        expected, _ = pipeline.encode_prompt(
            PROMPTS, do_classifier_free_guidance=False, max_sequence_length=12, device=torch.device("cpu")
        )
    found = encode_text(folder, PROMPTS, tokens=12)
    assert found.shape == (3, 12, 16)
    assert (found - expected).abs().max() <= 1e-6
    assert found[0, 5:].abs().max() == 0  # a maze & walls </s>
    assert found[1, 1:].abs().max() == 0
    assert found[0, :5].abs().amin(0).max() > 0


def test_round_trip_through_a_file(parts, tmp_path):
    folder, _, _ = parts
    write_text(folder, PROMPTS[0], tmp_path / "text.safetensors")
    text = read_text(tmp_path / "text.safetensors")
    assert text.shape == (512, 16)
    assert torch.equal(text, encode_text(folder, PROMPTS[:1])[0])
    assert read_metadata(tmp_path / "text.safetensors")["prompt"] == PROMPTS[0]


def test_bad_input(parts, tmp_path):
    with pytest.raises(UserError, match="somebody/none: no tokenizer/ and text_encoder/"):
        encode_text("somebody/none", ["a"])
    with pytest.raises(UserError, match="no such file"):
        read_text(tmp_path / "text.safetensors")
    save_file({"other": torch.zeros(2, 3)}, tmp_path / "text.safetensors")
    with pytest.raises(UserError, match=r"holds \['other'\], not the features of a text"):
        read_text(tmp_path / "text.safetensors")
