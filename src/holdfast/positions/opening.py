"""From a URL to a store of positions. Nothing is imported before its scheme is asked for."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote, urlsplit

from holdfast.errors import InvalidInputError
from holdfast.positions.base import SourceCheckpointStore, checked_id
from holdfast.positions.memory import MemorySourceCheckpointStore


def open_positions(url: str | os.PathLike[str], query_id: str, **options: Any) -> SourceCheckpointStore:
    """The positions of ``query_id`` at ``url``: a directory, or ``memory://``, ``sqlite:///``,
    ``postgresql://``, ``rocksdb:///``, ``redis://``, ``rediss://``, ``valkey://``.

    ``options`` are the backend's: ``guard``, ``sync``. Raises InvalidInputError for anything else,
    MissingExtraError where a client library is not installed, StoreUnavailableError where nobody answers.
    """
    query_id = checked_id(query_id, "query id")
    url = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(url, str) or not url:
        raise InvalidInputError(f"not a URL of source positions: {url!r}")
    try:
        return _open(url, query_id, options)
    except TypeError as error:
        if "unexpected keyword argument" in str(error):
            raise InvalidInputError(f"{url}: {error}") from error
        raise


def _open(url: str, query_id: str, options: dict[str, Any]) -> SourceCheckpointStore:
    scheme = url.partition("://")[0] if "://" in url else None
    if scheme == "memory":
        if url != "memory://":
            raise InvalidInputError(f"memory:// takes no name: {url!r}")
        return MemorySourceCheckpointStore(**options)
    if scheme in ("redis", "rediss", "valkey"):
        from holdfast.positions.redis import RedisSourceCheckpointStore

        return RedisSourceCheckpointStore(url, query_id, **options)
    if scheme == "rocksdb":
        from holdfast.positions.rocksdb import RocksDBSourceCheckpointStore

        return RocksDBSourceCheckpointStore(_rocksdb_directory(url, query_id), **options)
    if scheme in ("sqlite", "postgresql"):
        return _sql(url, query_id, options)
    if scheme is not None or "\0" in url:
        raise InvalidInputError(f"not a URL of source positions: {url!r}")
    return _sql(f"sqlite:///{os.path.join(url, 'positions.db')}", query_id, options)


def _sql(url: str, query_id: str, options: dict[str, Any]) -> SourceCheckpointStore:
    from holdfast.positions.sql import SQLSourceCheckpointStore

    return SQLSourceCheckpointStore(url, query_id, **options)


def _rocksdb_directory(url: str, query_id: str) -> str:
    parts = urlsplit(url)
    if parts.netloc or not parts.path.strip("/"):
        raise InvalidInputError(f"a RocksDB URL is rocksdb:///directory, not {url!r}")
    if query_id in (".", "..") or "/" in query_id or "\\" in query_id:
        raise InvalidInputError(f"a query id must be a directory name here, not {query_id!r}")
    return os.path.join(unquote(parts.path), query_id)
