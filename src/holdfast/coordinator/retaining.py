"""Retention while a flow runs: in the background, now and then, and never a reason to stop."""

from __future__ import annotations

import logging
import threading

from holdfast.ledger import Author
from holdfast.store import PartitionedCheckpointStore

log = logging.getLogger(__name__)


class Retention:
    """Prunes a store down to ``keep`` checkpoints, once in as many epochs. None keeps everything."""

    def __init__(self, store: PartitionedCheckpointStore, keep: int | None, author: Author) -> None:
        self._store = store
        # A run that was fenced meanwhile must take nothing away (I5), so it prunes in its own name.
        self._author = author
        self._keep = keep
        self._epochs = 0
        self._thread: threading.Thread | None = None
        #: How often pruning failed; the next time tries again.
        self.failures = 0

    def run_now_and_then(self) -> None:
        """An epoch is done. Every so often start pruning, unless the last one is still at it."""
        if self._keep is None:
            return
        self._epochs += 1
        if self._epochs < self._keep or (self._thread is not None and self._thread.is_alive()):
            return
        self._epochs = 0
        self._thread = threading.Thread(target=self._prune, name="holdfast-retention", daemon=True)
        self._thread.start()

    def wait(self, seconds: float = 30.0) -> None:
        """Let pruning under way come to an end; it may be left behind, a later one clears up."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _prune(self) -> None:
        assert self._keep is not None
        try:
            gone = self._store.prune(self._keep, author=self._author)
        except Exception as error:  # noqa: BLE001 - counted and told; an epoch must not fail for it
            self.failures += 1
            log.warning("old checkpoints could not be pruned, the next try comes later: %s", error)
        else:
            log.info("pruned %d checkpoints", gone)
