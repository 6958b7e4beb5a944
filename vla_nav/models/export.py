"""From a policy folder to a Hugging Face folder: `vla-nav export`.

    load_policy --> weights (adapters merged) --> hub_folder.py --> hub_card.py --> rename

The folder appears whole or not at all. What it holds gives the same actions bit for bit, except
for adapters that the policy kept apart (models.lora.merge: false): added to the plain weights they
compute the same up to rounding. Paths of the machine it was trained on stay behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vla_nav.errors import UserError
from vla_nav.files import atomic_folder, require_free_space
from vla_nav.models.checkpoint import load_policy
from vla_nav.models.hub_card import Card, read_report, render
from vla_nav.models.hub_folder import CARD, is_described, write_folder
from vla_nav.models.hub_tokenizer import require_same_ids
from vla_nav.models.lora import LoraConfig, merged
from vla_nav.models.policy_description import DESCRIPTION, as_merged, read_description

_PACKAGE = "package://"
_PROBES = ("turn left at the red sofa", " two  spaces, a\ntab\t and 2.5 m; don't", "<s> über 階段")


class Exported(NamedTuple):
    """What was written."""

    folder: Path
    num_parameters: int
    num_files: int
    num_bytes: int
    digest: str


def export_policy(
    checkpoint: str | Path,
    target: str | Path,
    *,
    card: Card,
    max_shard_size: str = "5GB",
    overwrite: bool = False,
) -> Exported:
    """Write `checkpoint` (a policy folder of either layout) as a Hugging Face folder `target`.

    max_shard_size: of the backbone's files, "5GB", "200MB". overwrite: replace an exported folder;
    any other that holds files is refused. Raises `UserError`.
    """
    target = Path(target)
    _require_shard_size(max_shard_size)
    _require_free(target, is_replaced=overwrite)
    loaded = load_policy(checkpoint)
    report = None if card.report is None else read_report(card.report, digest=loaded.digest)
    state, description = loaded.model.state_dict(), without_paths(loaded.description)
    lora = description["model"].get("lora")
    if lora is not None:
        state, description = merged(state, LoraConfig(**lora)), as_merged(description)
    state = {name: tensor.detach().contiguous() for name, tensor in state.items()}
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    require_free_space(target, size, what="the exported policy")
    with atomic_folder(target) as folder:
        write_folder(
            folder,
            loaded.model,
            loaded.prompt,
            description,
            state=state,
            digest=loaded.digest if lora is None else None,
            max_shard_size=max_shard_size,
        )
        require_same_ids(loaded.prompt.tokenizer, folder, _PROBES)
        written = read_description(folder)
        num_parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
        text = render(
            card,
            written,
            report,
            num_parameters=num_parameters,
            architecture=_architecture(folder),
        )
        (folder / CARD).write_text(text, encoding="utf-8")
        files = [path for path in folder.rglob("*") if path.is_file()]
        num_bytes = sum(path.stat().st_size for path in files)
    return Exported(target, num_parameters, len(files), num_bytes, written["weights"]["xxh3_128"])


def without_paths(value: Any) -> Any:
    """A description whose paths are reduced to their last name: what a reader elsewhere needs."""
    if isinstance(value, Mapping):
        return {key: _named(key, without_paths(item)) for key, item in value.items()}
    return [without_paths(item) for item in value] if isinstance(value, list) else value


def _named(key: str, item: Any) -> Any:
    is_path = isinstance(item, str) and (key == "path" or key.endswith("_path"))
    return Path(item).name if is_path and not item.startswith(_PACKAGE) else item


def _architecture(folder: Path) -> str:
    from vla_nav.files import read_json

    return str(read_json(folder / "config.json")["architectures"][0])


def _require_shard_size(text: str) -> None:
    number, unit = str(text)[:-2], str(text)[-2:].upper()
    if not number.isdigit() or int(number) == 0 or unit not in ("KB", "MB", "GB", "TB"):
        raise UserError(f"export.max_shard_size={text}: allowed: a size such as 500MB or 5GB")


def _require_free(target: Path, *, is_replaced: bool) -> None:
    """Raise `UserError` where `target` holds files that must not be replaced."""
    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(f"{target}: is a file; name a folder")
    if not any(target.iterdir()):
        return
    is_export = (target / DESCRIPTION).is_file() and is_described(read_description(target))
    if is_replaced and is_export:
        return
    if is_export:
        raise UserError(
            f"{target}: holds an exported policy; name another paths.output_dir, or set "
            "overwrite=true"
        )
    raise UserError(
        f"{target}: holds files that are no exported policy, which are never replaced; name "
        "another paths.output_dir"
    )
