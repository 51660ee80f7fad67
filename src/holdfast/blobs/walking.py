"""A directory tree as keys in ascending order, a bounded number of names in memory at a time.

A directory sorts by its name *with* the slash, since that is how its keys begin: ``a-b`` < ``a/b`` < ``a0``.
Errors of the operating system go through: the caller knows how to put them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from heapq import nsmallest

from holdfast.blobs.base import TEMPORARY_PREFIX, is_key
from holdfast.errors import InvalidInputError

# A directory with more names than this is read again for the rest.
_NAMES_AT_ONCE = 32_768


def walk_keys(root: str, prefix: str, start_after: str) -> Iterator[str]:
    """Keys of files below ``root`` that start with ``prefix`` and sort after ``start_after``, ascending."""
    # Start in the deepest directory that the prefix names in full.
    return _walk(root, prefix[: prefix.rfind("/") + 1], prefix, start_after, ())


def walk_leftovers(root: str) -> Iterator[str]:
    """Paths of all temporary files below ``root``, in no order."""

    def refused(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for directory, _, names in os.walk(root, onerror=refused):
        for name in names:
            if name.startswith(TEMPORARY_PREFIX):
                yield os.path.join(directory, name)


def _walk(
    root: str, directory: str, prefix: str, start_after: str, above: tuple[tuple[int, int], ...]
) -> Iterator[str]:
    place = _inode(f"{root}/{directory}")
    if place is None:
        return
    if place in above:
        raise InvalidInputError(f"listing {directory!r} in {root}: a link leads back to where it came from")
    last = ""
    while True:
        names = _names(root, directory, prefix, start_after, last)
        for name in names:
            key = directory + name
            if name.endswith("/"):
                yield from _walk(root, key, prefix, start_after, (*above, place))
            else:
                yield key
        if len(names) < _NAMES_AT_ONCE:
            return
        last = names[-1]


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


def _names(root: str, directory: str, prefix: str, start_after: str, last: str) -> list[str]:
    """The next names of ``directory`` that can hold wanted keys; directories end with a slash."""
    try:
        with os.scandir(f"{root}/{directory}") as entries:
            return nsmallest(_NAMES_AT_ONCE, _wanted(entries, directory, prefix, start_after, last))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _wanted(
    entries: Iterator[os.DirEntry[str]], directory: str, prefix: str, start_after: str, last: str
) -> Iterator[str]:
    for entry in entries:
        name = entry.name
        if not is_key(name):
            continue
        if entry.is_dir():
            name += "/"
            below = directory + name
            # Keys below begin with `below`: unless `start_after` does too, all sort on one side.
            if start_after > below and not start_after.startswith(below):
                continue
            if not (below.startswith(prefix) or prefix.startswith(below)):
                continue
        elif directory + name <= start_after or not (directory + name).startswith(prefix):
            continue
        if name > last:
            yield name
