"""A tokenizer for transformers' AutoTokenizer that gives the same ids as the policy's.

    kind         tokenizer.json, tokenizer_config.json       tokenizer/, which load_policy reads
    mistral_v3   made from the sentencepiece model           tokenizer.model
    tekken       transformers' conversion                    tekken.json
    folder,      as transformers saves it                    nothing: it reads the folder itself
    gguf

Sentencepiece's BPE joins the pair whose joined piece has the best score, first to last, and never
splits at spaces before; bytes stand in for characters without a piece. That is a BPE of the
tokenizers library whose merges are ordered by score. transformers' own conversion splits first and
differs at double spaces and leading spaces. In all of them text that looks like a control token
("<s>") is text, as in the policy. The one difference: mistral_v3 takes its own reserved marks
("[REFERENCE_DOC_0]" and nineteen more) out of a text as one id.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from vla_nav.errors import UserError
from vla_nav.models.tokenizer import Tokenizer

SOURCE_FILES = {"mistral_v3": "tokenizer.model", "tekken": "tekken.json"}
_SPACE = "\u2581"


def write_tokenizer(tokenizer: Tokenizer, folder: Path, *, source_folder: Path) -> None:
    """Write the Hugging Face files into `folder`, and a packaged tokenizer's own beside them."""
    if tokenizer.name not in SOURCE_FILES:
        tokenizer.save(folder)
        return
    source = tokenizer.source
    assert source is not None, "a packaged tokenizer is read from a file"
    source_folder.mkdir(parents=True, exist_ok=True)
    copy = source_folder / SOURCE_FILES[tokenizer.name]
    shutil.copyfile(source, copy)
    convert = _from_sentencepiece if tokenizer.name == "mistral_v3" else _from_tekken
    convert(copy).save_pretrained(str(folder))


def require_same_ids(tokenizer: Tokenizer, folder: Path, texts: tuple[str, ...]) -> None:
    """Raise `UserError` unless AutoTokenizer reads `folder` as the policy's tokenizer."""
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(
        str(folder), local_files_only=True, trust_remote_code=False
    )
    for text in texts:
        ids = tuple(found.encode(text, add_special_tokens=False))
        if ids != tokenizer.encode(text):
            raise UserError(
                f"models.tokenizer={tokenizer.name}: transformers reads the exported files as "
                f"another tokenizer ({type(found).__name__}: {ids[:6]} for {text[:20]!r}, "
                f"{tokenizer.encode(text)[:6]} here); install the pinned transformers"
            )


def _from_sentencepiece(path: Path) -> Any:
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Tokenizer as Pipeline
    from tokenizers import decoders, normalizers, processors
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    model = SentencePieceProcessor(model_file=str(path))
    ids = {model.id_to_piece(index): index for index in range(model.vocab_size())}
    ranked = []
    for text, index in ids.items():
        if any(is_no_text(index) for is_no_text in (model.is_control, model.is_byte)):
            continue
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                ranked.append((-model.get_score(index), index, ids[left], ids[right], left, right))
    merges = [(left, right) for *_, left, right in sorted(ranked)]
    unknown, begin, end = map(model.id_to_piece, (model.unk_id(), model.bos_id(), model.eos_id()))
    pipeline = Pipeline(BPE(ids, merges, byte_fallback=True, fuse_unk=True, unk_token=unknown))
    pipeline.normalizer = normalizers.Sequence(
        [normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)]
    )
    pipeline.decoder = decoders.Sequence(
        [
            decoders.Replace(_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    pipeline.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, ids[begin])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pipeline,
        bos_token=begin,
        eos_token=end,
        unk_token=unknown,
        split_special_tokens=True,
    )


def _from_tekken(path: Path) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    found = AutoTokenizer.from_pretrained(str(path.parent), local_files_only=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=found.backend_tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        split_special_tokens=True,
    )
