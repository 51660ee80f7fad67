"""A flow's store made by hand: real ledger, manifests and objects, no Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import CliRunner, Result

from holdfast.blobs import FileBlobs
from holdfast.cli import main
from holdfast.ids import CheckpointId
from holdfast.ledger import Author, OutcomeRecord, RestoreRecord, StartRecord, StopRecord, new_writer
from holdfast.manifest import SinkCommitStatus
from holdfast.store import PartitionedCheckpointStore

Holdfast: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass
class Flow:
    """A flow with sinks that writes what a run would, one epoch a batch."""

    root: Path
    sinks: tuple[str, ...] = ("db",)
    author: Author = field(init=False)
    ids: list[CheckpointId] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start()

    @property
    def store(self) -> PartitionedCheckpointStore:
        return PartitionedCheckpointStore(FileBlobs(self.root))

    def start(self) -> None:
        started = self.store.ledger.append(StartRecord(), author=Author(0, new_writer()))
        self.author = Author(started.n, started.writer)

    def decide(
        self, epoch: int, batch: int | None = None, parent: CheckpointId | None = None
    ) -> CheckpointId:
        batch = epoch - 1 if batch is None else batch
        writer = self.store.writer(epoch, parent, author=self.author)
        writer.add("0", 0, b"state after batch %d" % batch, delta=parent is not None)
        writer.manifest.sink_names = list(self.sinks)
        writer.manifest.sink_commit_statuses = dict.fromkeys(self.sinks, SinkCommitStatus.PENDING)
        writer.receipts = {name: [{"rows": 1}] for name in self.sinks}
        writer.batches = (batch, batch)
        writer.logs = {f"offsets/{batch}": "v1\n{}\n{}", f"commits/{batch}": "v1\n{}"}
        writer.publish()
        self.ids.append(writer.id)
        return writer.id

    def stop_with_state(self, epoch: int) -> CheckpointId:
        """End the run and take the state of the last decided epoch along, without a new epoch."""
        writer = self.store.writer(epoch + 1, author=self.author)
        writer.manifest.epoch = epoch
        writer.add("0", 0, b"state at the stop")
        seal = writer.write().seal
        stop = StopRecord(epoch=epoch, checkpoint_id=writer.id, seal=seal)
        self.store.ledger.append(stop, author=self.author)
        return writer.id

    def settle(self, epoch: int, status: SinkCommitStatus = SinkCommitStatus.COMMITTED) -> None:
        statuses = dict.fromkeys(self.sinks, status)
        self.store.ledger.append(OutcomeRecord(epoch=epoch, statuses=statuses), author=self.author)

    def go_back_to(self, epoch: int) -> None:
        decision = self.store.ledger.read().decision_of(epoch)
        assert decision is not None
        self.store.ledger.append(RestoreRecord(to=decision.n, sinks="rebase"), author=self.author)

    def damage(self, name: str, id: CheckpointId) -> str:
        """Flip one bit in the middle of an object of ``id``; its key."""
        (path,) = (self.root / "checkpoints" / str(id)).glob(name)
        return self.flip(path.relative_to(self.root).as_posix())

    def flip(self, key: str) -> str:
        """Flip one bit in the middle of the object at ``key``."""
        data = bytearray((self.root / key).read_bytes())
        data[len(data) // 2] ^= 1
        (self.root / key).write_bytes(data)
        return key


@pytest.fixture
def flow_at() -> Callable[..., Flow]:
    return Flow


@pytest.fixture
def flow(tmp_path: Path) -> Flow:
    return Flow(tmp_path / "flow")


@dataclass
class SparkDirectory:
    """The checkpoint directory of a stateless query over a file source, as Spark 4.3 writes it."""

    root: Path
    query_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def __post_init__(self) -> None:
        self._write("metadata", json.dumps({"id": self.query_id}))

    def commit(self, batch: int) -> None:
        taken = {"path": f"file:///in/{batch}.json", "timestamp": 1700000000000, "batchId": batch}
        planned = {"batchWatermarkMs": 0, "batchTimestampMs": 1795126251171 + batch, "conf": {}}
        self._write(f"sources/0/{batch}", f"v1\n{json.dumps(taken)}")
        self._write(f"offsets/{batch}", f'v1\n{json.dumps(planned)}\n{{"logOffset":{batch}}}')
        self._write(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')

    def files(self) -> dict[str, bytes]:
        return contents(self.root)

    def _write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text, encoding="utf-8")


def contents(root: Path) -> dict[str, bytes]:
    """Every file below ``root``, by its path in it."""
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.fixture
def query(tmp_path: Path) -> SparkDirectory:
    """A query that has committed batches 0 and 1."""
    directory = SparkDirectory(tmp_path / "query")
    directory.commit(0)
    directory.commit(1)
    return directory


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Result]:
    """Call a command in this process."""

    def ask(*arguments: object) -> Result:
        return CliRunner().invoke(main, [str(one) for one in arguments], env={"HOLDFAST_STORE": ""})

    return ask


@pytest.fixture
def document(ask: Callable[..., Result]) -> Callable[..., Any]:
    """What a command prints with ``--json``."""

    def document(*arguments: object) -> Any:
        return json.loads(ask(*arguments, "--json").stdout)

    return document


@pytest.fixture
def holdfast() -> Holdfast:
    """Call the installed program in a process of its own."""

    def holdfast(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        return subprocess.run(
            [Path(sys.executable).with_name("holdfast"), *map(str, arguments)],
            env={**clean, **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    return holdfast
