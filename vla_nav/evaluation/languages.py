"""Languages of instructions: which episodes are wanted, and one row of the table for each.

RxR-CE has te-IN, hi-IN, en-US and en-IN. Results are published per language, English being both of
its dialects, so a name without a region stands for every dialect of it:

    en     en-US, en-IN              a row of its own beside those of its dialects
    te     te-IN
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from vla_nav.episodes.types import Episode


def language_of(episode: Episode) -> str | None:
    """The language that an episode's instruction states, or None (R2R-CE states none)."""
    about = episode.metadata.get("instruction")
    language = about.get("language") if isinstance(about, dict) else None
    return str(language) if language else None


def is_wanted(language: str | None, wanted: Sequence[str]) -> bool:
    """Whether `wanted` names this language, be it by dialect (`en-IN`) or as a whole (`en`)."""
    return language is not None and (language in wanted or language.partition("-")[0] in wanted)


def count_languages(episodes: Iterable[Episode]) -> dict[str, int]:
    """Episodes per language, sorted by it; {} where none is stated."""
    counted = Counter(language for episode in episodes if (language := language_of(episode)))
    return dict(sorted(counted.items()))


def language_groups(languages: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Row name -> the languages in it: every language, and what several dialects are together.

    >>> language_groups(["te-IN", "en-US", "en-IN"])
    {'en': ('en-IN', 'en-US'), 'en-IN': ('en-IN',), 'en-US': ('en-US',), 'te-IN': ('te-IN',)}
    """
    names = sorted(set(languages))
    dialects: dict[str, list[str]] = defaultdict(list)
    for name in names:
        dialects[name.partition("-")[0]].append(name)
    groups = {name: (name,) for name in names}
    groups |= {base: tuple(found) for base, found in dialects.items() if len(found) > 1}
    return dict(sorted(groups.items()))
