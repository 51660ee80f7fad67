"""Does this store keep its word? A few requests tell, before anything rests on it."""

from __future__ import annotations

import secrets
from contextlib import suppress

from holdfast.blobs.base import BlobStore
from holdfast.errors import InvalidInputError, KeyExistsError, StoreUnavailableError

PROBE_PREFIX = "_holdfast/probe-"

# Ascending. A service that walks directories puts the second one last.
_NAMES = ("a", "a-b", "a/b", "a0")


def probe(blobs: BlobStore) -> None:
    """Return if ``blobs`` refuses a second create of a key and lists in order; else raise InvalidInputError.

    Some imitations of object stores accept a conditional request and ignore its condition: every rival wins.
    Leaves nothing behind, unless the store can't delete.
    """
    place = f"{PROBE_PREFIX}{secrets.token_hex(8)}"
    try:
        _probe_create(blobs, f"{place}/create")
        _probe_order(blobs, f"{place}/order/")
    finally:
        _clean_up(blobs, place)


def _probe_create(blobs: BlobStore, key: str) -> None:
    blobs.create(key, b"first")
    try:
        blobs.create(key, b"second")
    except KeyExistsError:
        if blobs.get(key) == b"first":
            return
    raise InvalidInputError(
        f"{blobs!r} ignores conditional writes: a second create of one key went through"
    ).with_hint(
        "two runs could both believe that they decided an epoch; use another store, or a newer version of it"
    )


def _probe_order(blobs: BlobStore, prefix: str) -> None:
    # A file system holds "a" or "a/b", never both.
    expected = [prefix + name for name in _NAMES[1:]]
    for key in reversed(expected):
        blobs.create(key, b"")
    listed = [info.key for info in blobs.list(prefix)]
    if listed != expected:
        raise InvalidInputError(
            f"{blobs!r} does not list keys in ascending order, or not all of them"
        ).with_hint("directory buckets and hierarchical namespaces can't hold a store")


def _clean_up(blobs: BlobStore, place: str) -> None:
    # Whatever is wrong with the store has been said already, or is about to be.
    with suppress(StoreUnavailableError):
        for key in [f"{place}/create", *(f"{place}/order/{name}" for name in _NAMES)]:
            blobs.delete(key)
