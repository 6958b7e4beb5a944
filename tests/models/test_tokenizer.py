"""Tokenizers that ship in packages: round trips, fingerprints, memory, one clear line on faults."""

from __future__ import annotations

import pytest

from vla_nav.errors import UserError
from vla_nav.models.assembly import ModelConfig
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.tokenizer import load_tokenizer

TEXT = "Walk past the red sofa, turn left at the door; stop 2 m from the plant."


@pytest.mark.parametrize(("name", "num_tokens"), [("mistral_v3", 32_768), ("tekken", 131_072)])
def test_packaged_tokenizers_read_back_what_they_write(name, num_tokens):
    tokenizer = load_tokenizer(name)
    ids = tokenizer.encode(TEXT)
    assert tokenizer.num_tokens == num_tokens
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.encode(TEXT) is ids, "remembered"
    assert 10 < len(ids) < 40
    assert max(ids) < num_tokens
    assert tokenizer.bos_id not in ids
    assert tokenizer.fingerprint() == load_tokenizer(name).fingerprint()
    assert tokenizer.encode("") == ()


def test_fingerprints_tell_tokenizers_apart(tmp_path):
    assert load_tokenizer().fingerprint().startswith("mistral_v3-32768-")


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("mistral", None, "did you mean 'mistral_v3'"),
        ("folder", None, "tokenizer_path must name"),
        ("folder", "/nowhere", "no such folder"),
        ("gguf", "/nowhere.gguf", "no such file"),
        ("gguf", "package://no_such_package/model.gguf", "offline-weights"),
    ],
)
def test_missing_tokenizers_are_one_clear_line(name, path, message):
    with pytest.raises(UserError, match=message) as caught:
        load_tokenizer(name, path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["/nowhere", "."], ids=["none", "no tokenizer"])
def test_the_backbones_folder_is_named_by_its_own_key(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    backbone = BackboneConfig("folder", path=path)
    with pytest.raises(UserError, match=rf"^models\.backbone\.path={path}: no "):
        ModelConfig(backbone=backbone, tokenizer="folder").load_tokenizer()
    with pytest.raises(UserError, match=r"^models\.tokenizer_path="):
        ModelConfig(backbone, tokenizer="folder", tokenizer_path=path).load_tokenizer()


def test_damaged_files_are_named(tmp_path):
    broken = tmp_path / "broken.model"
    broken.write_bytes(b"not a model")
    with pytest.raises(UserError, match=r"broken\.model"):
        load_tokenizer("mistral_v3", str(broken))
    with pytest.raises(UserError, match="no readable tokenizer"):
        load_tokenizer("folder", str(tmp_path))
