"""From ``--store`` to a store. A reading command finds one there, or says what is there instead."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.errors import NotFoundError

if TYPE_CHECKING:
    from holdfast.store import PartitionedCheckpointStore

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
    store = open_store(url)
    if store.ledger.read().head == 0 and not store.list_ids():
        raise EmptyStoreError(url).with_hint(_hint(store, url))
    return store


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
