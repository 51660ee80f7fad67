"""File systems that take ``Key`` and ``key`` for one name, as those of laptops do. A store may not.

There every access looks at how the name is really spelled; elsewhere this costs nothing.
"""

from __future__ import annotations

import os

from holdfast.errors import ConflictError


def folds_case(root: str) -> bool:
    """Whether the file system finds ``root`` under other letters too. ``root`` must be there."""
    path = root
    # Up to a name that has letters at all.
    while path != "/" and os.path.basename(path).swapcase() == os.path.basename(path):
        path = os.path.dirname(path)
    other = os.path.join(os.path.dirname(path), os.path.basename(path).swapcase())
    try:
        return path != "/" and os.path.samefile(path, other)
    except FileNotFoundError:
        return False


def check_spelling(root: str, key: str) -> None:
    """Raise ConflictError if ``key``, or a directory of it, is there under other letters."""
    directory = root
    for name in key.split("/"):
        path = f"{directory}/{name}"
        if not os.path.lexists(path):
            return
        names = os.listdir(directory)
        if name not in names:
            others = ", ".join(sorted(repr(each) for each in names if each.casefold() == name.casefold()))
            raise ConflictError(
                f"key {key!r} in {root}: {name!r} would be the same file as {others or 'another one'}, "
                "since this file system takes capital and small letters for one"
            ).with_hint("rename one of the two, or use a file system or object store that tells them apart")
        directory = path
