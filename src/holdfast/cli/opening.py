"""From ``--store`` to a store. A reading command finds one there, or says what is there instead."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from holdfast.blobs import BlobStore
    from holdfast.store import NumberedCheckpointStore, PartitionedCheckpointStore

_FLOW = re.compile(r"(.+?)/(?:ledger/\d{12}\.json|checkpoints/[0-9a-f-]{36}/manifest\.json)")
# Enough to meet a few flows below a pipeline's root, little enough for the wrong bucket.
_LOOKED_AT = 10_000


class EmptyStoreError(NotFoundError):
    """Nothing at this URL is a flow's."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url

    def __str__(self) -> str:
        return f"there is no checkpoint store at {self.url}"


def open_store(url: str) -> PartitionedCheckpointStore:
    """The store at ``url``, whether or not anything is there yet."""
    from holdfast.blobs.opening import open_blobs
    from holdfast.store import PartitionedCheckpointStore

    return PartitionedCheckpointStore(open_blobs(url))


def open_existing(url: str) -> PartitionedCheckpointStore:
    """The store at ``url``. Raises EmptyStoreError, with the flows that lie below it as a hint."""
    from holdfast.store import PartitionedCheckpointStore

    store = open_any(url)
    if isinstance(store, PartitionedCheckpointStore):
        return store
    raise InvalidInputError(f"{url} holds numbered (v1) checkpoints").with_hint(
        "list, show, verify, recover --dry-run, prune and gc know those; this command needs a ledger"
    )


def open_any(url: str) -> PartitionedCheckpointStore | NumberedCheckpointStore:
    """The store at ``url``, of this format or of v1. Raises EmptyStoreError as ``open_existing`` does."""
    store = open_store(url)
    if store.ledger.read().head or store.list_ids():
        return store
    numbered = _find_numbered(store.blobs)
    if numbered is None:
        raise EmptyStoreError(url).with_hint(_hint(store, url))
    return numbered


def _find_numbered(blobs: BlobStore) -> NumberedCheckpointStore | None:
    """The v1 store that lies there, in either layout; the one of object stores reads both."""
    from holdfast.store import NumberedCheckpointStore
    from holdfast.store.layouts import FileLayout, ObjectLayout

    in_objects, in_files = (NumberedCheckpointStore(blobs, one) for one in (ObjectLayout(), FileLayout()))
    if any(in_objects.layout.manifest_number(info.key) for info in blobs.list("manifests/")):
        return in_objects
    return in_files if in_files.list_ids() else None


def _hint(store: PartitionedCheckpointStore, url: str) -> str:
    flows: dict[str, None] = {}
    for blob in islice(store.blobs.list(""), _LOOKED_AT):
        if found := _FLOW.match(blob.key):
            flows[found[1]] = None
    if not flows:
        return (
            "--store takes a flow's root, {store}/{pipeline}/{flow}: "
            "`holdfast run pipeline.yaml --check` prints it"
        )
    named = " or ".join(f"--store {url.rstrip('/')}/{flow}" for flow in list(flows)[:3])
    return f"a flow lies below it; try {named}"
