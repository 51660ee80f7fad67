"""Where Spark keeps its own checkpoint while a flow runs: local, fast, and never trusted over the ledger.

    {root}/{generation}-{writer}/      one directory a generation, always made from the store

No run goes on in another's directory: a zombie may still be writing there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.errors import InvalidInputError
from holdfast.ledger import Author


def scratch_root(declared: str | None, store_url: str, flow: str) -> Path:
    """Where a flow's scratch directories live: as declared, else in the user's cache, apart for each flow."""
    if declared is not None:
        parts = urlsplit(declared)
        if parts.scheme not in ("", "file"):
            raise InvalidInputError(f"scratch: {parts.scheme}:// is not supported yet").with_hint(
                "leave scratch out, or give a local directory"
            )
        return Path(parts.path if parts.scheme else declared).absolute() / flow
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256(f"{_absolute(store_url)}\n{flow}".encode()).hexdigest()[:16]
    return caches / "holdfast" / "scratch" / f"{flow.replace('/', '-')}-{key}"


def _absolute(store_url: str) -> str:
    return store_url if "://" in store_url else str(Path(store_url).absolute())


def directory_of(root: Path, author: Author) -> Path:
    return root / f"{author.generation}-{author.writer}"


def remove_older(root: Path, keep: Path) -> None:
    """Drop the directories of other generations. What cannot go now is dropped by a later run."""
    for other in root.iterdir():
        if other != keep and other.is_dir():
            shutil.rmtree(other, ignore_errors=True)
