"""From a URL to a store. What comes after the bucket or the name is the prefix for everyone who uses it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.blobs.base import BlobStore
from holdfast.blobs.files import FileBlobs
from holdfast.blobs.memory import named_memory
from holdfast.blobs.prefixed import PrefixedBlobs
from holdfast.blobs.retrying import RetryingBlobs
from holdfast.errors import InvalidInputError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(file):/(?!/)", re.ASCII)
_CLOUD = ("s3", "s3a", "gs", "az", "abfs", "abfss")


def open_blobs(url: str | os.PathLike[str], **options: object) -> BlobStore:
    """The store at ``url``: a path, ``file://``, ``memory://name``, ``s3://``, ``gs://``, ``az://`` or ``abfss://``.

    ``options`` go to the backend; one it does not know is refused, so that a typing error never passes
    for a setting. Opening touches neither disk nor network.
    """
    if isinstance(url, os.PathLike):
        return _files(os.fspath(url), options)
    matched = _SCHEME.match(url)
    if matched is None:
        return _files(url, options)
    scheme = (matched[1] or matched[2]).lower()
    if scheme == "file":
        return _files(_path_of(url), options)
    if scheme == "memory":
        return _memory(url, options)
    if scheme in _CLOUD:
        return _objects(url, options)
    raise InvalidInputError(f"no store speaks {scheme}://").with_hint(
        "use a path, file://, memory://name, s3://, gs://, az:// or abfss://"
    )


def _files(path: str, options: dict[str, object]) -> BlobStore:
    _refuse(options, "a path")
    if not path:
        raise InvalidInputError("the path of a store must not be empty")
    if "\0" in path:
        raise InvalidInputError(f"the path {path!r} holds a NUL character")
    return FileBlobs(Path(path))


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise InvalidInputError(
            f"{url!r} names the host {parts.netloc!r}; a file URL holds an absolute path"
        ).with_hint(f"three slashes: file:///{parts.netloc}{parts.path}")
    if parts.query or parts.fragment:
        raise InvalidInputError(f"{url!r} holds '?' or '#'; write them as %3F and %23")
    return unquote(parts.path)


def _memory(url: str, options: dict[str, object]) -> BlobStore:
    _refuse(options, "memory://")
    name, _, path = url.split("://", 1)[1].partition("/")
    if not name:
        raise InvalidInputError(f"{url!r} has no name").with_hint(
            "memory://name: the same name is the same store"
        )
    prefix = path.strip("/")
    return PrefixedBlobs(named_memory(name), prefix + "/") if prefix else named_memory(name)


def _objects(url: str, options: dict[str, object]) -> BlobStore:
    # Only here: whoever needs no object store need not have its client installed.
    from holdfast.blobs.objects import ObjectBlobs

    parts = urlsplit(url)
    blobs = RetryingBlobs(ObjectBlobs(parts._replace(path="").geturl(), **options))
    prefix = parts.path.strip("/")
    return PrefixedBlobs(blobs, prefix + "/") if prefix else blobs


def _refuse(options: dict[str, object], what: str) -> None:
    if options:
        raise InvalidInputError(f"{what} takes no option {', '.join(sorted(map(repr, options)))}")
