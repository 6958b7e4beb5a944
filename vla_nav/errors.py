"""Errors that a user can mend: one clear line that names what was got, where, and the remedy.

Everything that a wrong file, key or value can cause raises `UserError`; the command line prints
its text alone and exits with 2. Anything else is a defect of the program and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A fault in the user's input: the message names the file and key, the value and the remedy.

    Messages repeat what a file says, so characters that cannot be printed (line ends, terminal
    escapes, half characters) are written as their escapes: the message is one line of text.
    """

    def __init__(self, message: str) -> None:
        super().__init__("".join(map(_printable, message)))


class StoppedError(Exception):
    """A run that ended before its time, with its last checkpoint whole.

    The message is one line of what happened and how to go on; `code` is the exit code. is_shared:
    every process of the run ends with the same words, and one of them says them.
    """

    def __init__(self, message: str, code: int, *, is_shared: bool = False) -> None:
        super().__init__("".join(map(_printable, message)))
        self.code, self.is_shared = code, is_shared


def _printable(character: str) -> str:
    """The character, or `\\x1b` and the like for one that a terminal must not get."""
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def require_count(key: str, value: object, *, least: int = 1, or_null: bool = False) -> None:
    """Raise `UserError` unless `value` is an integer of `least` or more, or null where allowed."""
    if value is None and or_null:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        allowed = f"integers of {least} and more{', or null' if or_null else ''}"
        raise UserError(f"{key}={value}: allowed: {allowed}")


def unknown_name(kind: str, name: str, allowed: Iterable[str]) -> UserError:
    """The error for a name that is not one of `allowed`, with the nearest one offered.

    >>> str(unknown_name("attention backend", "flx", ["flex", "sdpa"]))
    "unknown attention backend 'flx' (did you mean 'flex'?); allowed: flex, sdpa"
    """
    names = sorted(allowed)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    return UserError(f"unknown {kind} '{name}'{hint}; allowed: {', '.join(names)}")
