"""Each part of an exported folder, read by the library it comes from, without this project."""

from __future__ import annotations

import json

import pytest
import timm
import torch
from exported import ENCODERS, bundle, export, logits, texts
from test_backbone import causal
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from vla_nav.models.checkpoint import load_policy
from vla_nav.models.hub_tokenizer import _from_sentencepiece
from vla_nav.models.tokenizer import load_tokenizer

LOCAL = {"local_files_only": True, "trust_remote_code": False}


@pytest.mark.parametrize(
    ("family", "head", "is_tied", "auto", "shard"),
    [
        ("qwen3", "actions", True, AutoModelForCausalLM, "5GB"),
        ("mistral", "full", False, AutoModelForCausalLM, "1MB"),
        ("llama", "actions", False, AutoModel, "5GB"),
    ],
)
def test_transformers_reads_the_backbone(tmp_path, family, head, is_tied, auto, shard):
    options = {"family": family, "head": head, "is_tied": is_tied}
    model = bundle(tmp_path / "policy", **options).model
    folder = export(tmp_path / "policy", tmp_path / "hub", max_shard_size=shard)
    found, told = auto.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", **LOCAL
    )
    faults = [told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")]
    assert not any(faults)
    assert json.loads((folder / "config.json").read_text())["architectures"] == [
        type(found).__name__
    ]
    bare = found if auto is AutoModel else found.model
    ours = model.backbone.model.state_dict()
    assert ours.keys() == bare.state_dict().keys()
    assert all(torch.equal(ours[name], x) for name, x in bare.state_dict().items())
    if head == "full":
        assert torch.equal(found.lm_head.weight, model.text_head.weight)
    embeddings = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs = bare(inputs_embeds=embeddings, use_cache=False).last_hidden_state
        mine = model.backbone(embeddings, torch.arange(9)[None], causal)
    torch.testing.assert_close(theirs, mine, rtol=1e-4, atol=1e-5)  # float32, other order of sums


@pytest.mark.parametrize("kind", ENCODERS)
def test_timm_reads_the_encoder_and_transformers_its_preprocessing(tmp_path, kind):
    encoder = bundle(tmp_path / "policy", encoder=ENCODERS[kind]).model.encoder
    folder = export(tmp_path / "policy", tmp_path / "hub")
    found = timm.create_model(
        f"local-dir:{folder}/encoder", pretrained=True, pretrained_strict=kind != "cut"
    )
    theirs = found.state_dict()
    for name, tensor in encoder.model.state_dict().items():
        assert torch.equal(tensor.to(theirs[name].dtype), theirs[name]), name
    settings = timm.data.resolve_model_data_config(found)
    assert tuple(settings["input_size"]) == (3, *encoder.image_size)
    assert (tuple(settings["mean"]), tuple(settings["std"])) == (encoder.mean, encoder.std)
    images = torch.randint(0, 256, (2, 48, 64, 3), generator=torch.Generator().manual_seed(1))
    images = images.to(torch.uint8)
    ours = encoder._normalised(images).float()
    processor = AutoImageProcessor.from_pretrained(folder, **LOCAL)
    seen = processor(list(images.permute(0, 3, 1, 2)), return_tensors="pt")["pixel_values"]
    # One grey level of rounding in the resizing; bfloat16 weights see three digits.
    level = 1 / 255 / min(encoder.std) + (2e-2 if kind == "frozen" else 0)
    assert (seen - ours).abs().max() <= 1.01 * level
    if kind == "cut":
        (features,) = found.eval().forward_intermediates(
            ours, indices=[encoder._kept_stage], intermediates_only=True
        )
        torch.testing.assert_close(features.permute(0, 2, 3, 1), encoder._grid(ours))


def saved_tokenizer(folder) -> str:
    """A Hugging Face tokenizer folder of another vocabulary than the packaged ones."""
    source = load_tokenizer("mistral_v3").source
    whole = _from_sentencepiece(source)
    pipeline = json.loads(whole.backend_tokenizer.to_str())
    pipeline["model"]["vocab"] = {
        piece: index for piece, index in pipeline["model"]["vocab"].items() if index < 2000
    }
    kept = pipeline["model"]["vocab"].keys()
    pipeline["model"]["merges"] = [
        [a, b] for a, b in pipeline["model"]["merges"] if {a, b, a + b} <= kept
    ]
    from tokenizers import Tokenizer

    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(pipeline)), bos_token="<s>"
    ).save_pretrained(str(folder))
    return str(folder)


@pytest.mark.parametrize(
    "kind", ["mistral_v3", pytest.param("tekken", marks=pytest.mark.slow), "folder"]
)
def test_transformers_reads_every_tokenizer_as_the_policy_does(tmp_path, kind):
    path = saved_tokenizer(tmp_path / "own") if kind == "folder" else None
    prompt = bundle(tmp_path / "policy", tokenizer=(kind, path)).prompt
    folder = export(tmp_path / "policy", tmp_path / "hub")
    found = AutoTokenizer.from_pretrained(folder, **LOCAL)
    for text in texts(1000):
        ids = prompt.tokenizer.encode(text)
        assert tuple(found.encode(text, add_special_tokens=False)) == ids, repr(text)
    ids = prompt.tokenizer.encode("walk to the red door")
    assert found.decode(ids) == prompt.tokenizer.decode(ids)
    assert found.bos_token_id == prompt.tokenizer.bos_id
    before, after = load_policy(tmp_path / "policy"), load_policy(folder)
    assert after.prompt.tokenizer.fingerprint() == prompt.tokenizer.fingerprint()
    for a, b in zip(logits(before), logits(after), strict=True):
        assert torch.equal(a, b)


def test_the_action_space_is_told_in_full(tmp_path):
    prompt = bundle(tmp_path / "policy").prompt
    told = json.loads(
        (export(tmp_path / "policy", tmp_path / "hub") / "action_space.json").read_text()
    )
    assert told["tokens"] == list(prompt.action_space.token_names)
    assert told["vocabulary"]["actions"] == len(told["tokens"])
    assert told["vocabulary"]["text"] == prompt.tokenizer.num_tokens
    assert told["decision"] == str(prompt.action_space.decision)
