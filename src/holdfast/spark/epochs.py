"""Spark's micro-batches become epochs: rows for the sinks, and the state that goes with them.

every = 0          each batch is an epoch, decided inside it, with a commit record made ahead of Spark's
every > 0          several batches are one, decided in the batch with which the interval is over; or,
                   when no batch comes, from the commit record that Spark wrote
state_every > 0    most epochs carry no state: one record each, and the state is rebuilt by replay
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.capture import capture_batch, epoch_logs
from holdfast.coordinator import Observer, Run, Sink, observed
from holdfast.manifest import Engine
from holdfast.spark.commits import commit_text
from holdfast.spark.frames import BuiltFlow
from holdfast.spark.replaying import drive
from holdfast.sparkdir import FileEntry, SparkCheckpoint
from holdfast.store import CheckpointWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

CHAIN_LIMIT = 20


@dataclass(frozen=True, slots=True)
class Pace:
    """How many batches an epoch may take, and how seldom state is captured; both in seconds, 0: always."""

    every_seconds: float = 0.0
    state_every_seconds: float = 0.0


@dataclass(slots=True)
class Held:
    """What the chain behind the next capture holds: its files, and how many links it has."""

    files: dict[str, FileEntry]
    links: int = 0


@contextmanager
def computed_once(frame: DataFrame, epoch: int, observe: Observer) -> Iterator[DataFrame]:
    """The rows of a batch, computed by one full action and then read from the cache as often as needed.

    A second action over the batch itself would commit its state a second time.
    """
    rows = frame.persist()
    try:
        with observed(observe, "compute", epoch=epoch) as facts:
            facts.update(rows=rows.count())
        yield rows
    finally:
        rows.unpersist()


class EpochMaker:
    """Turns the batches of one query into epochs of one run."""

    def __init__(
        self,
        run: Run,
        built: BuiltFlow,
        sinks: Mapping[str, Sink],
        *,
        scratch: Path,
        held: Held,
        pace: Pace,
        state_format: int,
        spark_version: str,
        observe: Observer,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._built = built
        # A sink that runs one action of its own over the rows, and no other, needs no cache.
        self._in_one_pass = len(sinks) == 1 and all(
            getattr(sink, "computes_once", False) for sink in sinks.values()
        )
        self._checkpoint = SparkCheckpoint(str(scratch))
        self._held = held
        self._logged: dict[str, FileEntry] = {}
        self._pace = pace
        self._state_format = state_format
        self._spark_version = spark_version
        self._observe = observe
        self._now = now
        self._opened_at = now()
        self._captured_at: float | None = None

    def on_batch(self, frame: DataFrame, batch: int, query: StreamingQuery) -> None:
        """Take one micro-batch; decide the epoch if it is complete with it."""
        if self._run.is_decided(batch):
            drive(frame)  # its rows are out already; only the state has to follow
            return
        if self._run.open is None:
            self._opened_at = self._now()
        if self._in_one_pass:
            self._run.take(batch, nullcontext(frame))
        else:
            self._run.take(batch, computed_once(frame, self._run.next_epoch, self._observe))
        if self._is_due():
            self._decide(commit_text(query, state_format=self._state_format))

    def between_batches(self) -> None:
        """Decide the open epoch if its interval ended and no batch has come since."""
        if self._run.open is not None and self._is_due() and self._is_committed():
            self._decide(None)

    def at_the_end(self) -> None:
        """The query ended: decide the open epoch if Spark finished its last batch, else give it up."""
        if self._run.open is None:
            return
        if self._is_committed():
            self._decide(None)
        else:
            self._run.abandon()

    def _is_due(self) -> bool:
        return self._now() - self._opened_at >= self._pace.every_seconds

    def _is_committed(self) -> bool:
        assert self._run.open is not None
        return self._run.open.last in self._checkpoint.committed()

    def _decide(self, commit: str | None) -> None:
        """Decide the open epoch. ``commit`` is its commit record; None: the one on disk."""
        assert self._run.open is not None
        first, last = self._run.open.first, self._run.open.last
        if self._is_light():
            known = {**self._held.files, **self._logged}
            logs, seen = epoch_logs(self._checkpoint, last, commit_text=commit, first=first, known=known)
            self._run.decide_light(logs)
            self._logged.update(seen)
            return
        self._run.decide(lambda writer: self._capture(writer, first, last, commit))
        self._captured_at = self._now()

    def _is_light(self) -> bool:
        if self._pace.state_every_seconds <= 0 or self._captured_at is None:
            return False
        return self._now() - self._captured_at < self._pace.state_every_seconds

    def _capture(self, writer: CheckpointWriter, first: int, last: int, commit: str | None) -> None:
        delta = self._run.parent is not None and self._held.links < CHAIN_LIMIT
        writer.manifest.engine = Engine(version=self._spark_version, plan_fingerprint=self._built.fingerprint)
        writer.manifest.source_names = sorted(self._built.source_order)
        captured = capture_batch(
            writer,
            self._checkpoint,
            last,
            commit_text=commit,
            known=self._held.files,
            delta=delta,
            first=first,
            source_names=self._built.source_order,
        )
        writer.logs = captured.logs
        self._held.files = dict(captured.index)
        self._held.links = self._held.links + 1 if delta else 1
