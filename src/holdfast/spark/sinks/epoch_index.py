"""Which epochs a directory of files shows, written down beside the files. Nothing here moves rows.

    {path}/_holdfast/epochs/{flow and sink}/{epoch / 1000}/{epoch}.json    an epoch, whole: its files
    {path}/_holdfast/rewound/{flow and sink}/{first}-{last}.json           epochs taken back, for good

An entry is created once, after the last of its files is in place; a tombstone outranks every entry,
whichever came first. A reader that goes by entries sees whole epochs or nothing of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.coordinator.sink import Epoch, SinkFlow
from holdfast.errors import ConflictError, CorruptError, InvalidInputError, UnsupportedFormatError
from holdfast.ids import CheckpointId
from holdfast.manifest.codec import canonical, parse_object, pretty, sha256_hex
from holdfast.spark.sinks import disk
from holdfast.spark.sinks.attempts import owner_directory

HIDDEN = "_holdfast"
_VERSION = 1
# Names in one directory: small enough to list for each epoch, whatever the age of the flow.
_TOGETHER = 1000

_ENTRY = re.compile(r"([0-9]{12,})\.json")
_TOMBSTONE = re.compile(r"([0-9]{12,})-([0-9]{12,})\.json")


@dataclass(frozen=True, slots=True)
class ShownFile:
    """One file of an epoch: its path below the sink's, with what its bytes were when it was prepared."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ShownEpoch:
    """An epoch that is shown whole."""

    flow: SinkFlow
    epoch: Epoch
    files: tuple[ShownFile, ...]


class EpochIndex:
    """The entries and tombstones of one flow's sink in the directory ``root``."""

    def __init__(self, root: str, flow: SinkFlow) -> None:
        self._flow = flow
        self._entries = os.path.join(root, HIDDEN, "epochs", owner_directory(flow))
        self._tombstones = os.path.join(root, HIDDEN, "rewound", owner_directory(flow))

    def find(self, number: int) -> ShownEpoch | None:
        """The entry of an epoch, if it is shown. Raises CorruptError, ConflictError."""
        return None if self.is_rewound(number) else self._read(number)

    def newest(self) -> ShownEpoch | None:
        """The highest epoch shown."""
        rewound = self._rewound()
        for number in _numbers(self._entries, descending=True):
            if not _covers(rewound, number) and (entry := self._read(number)) is not None:
                return entry
        return None

    def shown(self) -> Iterator[ShownEpoch]:
        """Every epoch shown, ascending."""
        rewound = self._rewound()
        for number in _numbers(self._entries):
            if not _covers(rewound, number) and (entry := self._read(number)) is not None:
                yield entry

    def create(self, entry: ShownEpoch) -> None:
        """Show ``entry``. Twice is once; an entry of another checkpoint in its place is ConflictError."""
        path = self._path(entry.epoch.number)
        disk.make_directory(os.path.dirname(path))
        try:
            disk.write_new(path, _encoded(entry))
        except FileExistsError:
            there = self._read(entry.epoch.number)
            if there is not None:
                check_same_attempt(there, entry.epoch)
            # A rival's entry may not be synced yet, and from here on it is relied on (D3).
            disk.sync_directory(os.path.dirname(path))

    def bury(self, first: int, last: int) -> None:
        """Leave a tombstone for a closed range of epochs."""
        disk.make_directory(self._tombstones)
        document = {
            "version": _VERSION,
            "flow": self._flow.flow,
            "sink": self._flow.sink,
            "first": first,
            "last": last,
        }
        try:
            disk.write_new(os.path.join(self._tombstones, f"{first:012}-{last:012}.json"), pretty(document))
        except FileExistsError:
            disk.sync_directory(self._tombstones)

    def is_rewound(self, number: int) -> bool:
        return _covers(self._rewound(), number)

    def entries_between(self, first: int, last: int) -> Iterator[ShownEpoch]:
        """Entries of a closed range, tombstones or not."""
        for number in _numbers(self._entries):
            if first <= number <= last and (entry := self._read(number)) is not None:
                yield entry

    def forget(self, number: int) -> None:
        """Remove the entry of a rewound epoch."""
        path = self._path(number)
        disk.remove(path)
        disk.sync_directory(os.path.dirname(path))

    def _path(self, number: int) -> str:
        return os.path.join(self._entries, f"{number // _TOGETHER:09}", f"{number:012}.json")

    def _rewound(self) -> list[tuple[int, int]]:
        # The name is all there is to know: one listing answers for every epoch.
        matches = map(_TOMBSTONE.fullmatch, disk.names_in(self._tombstones))
        return [(int(matched[1]), int(matched[2])) for matched in matches if matched]

    def _read(self, number: int) -> ShownEpoch | None:
        path = self._path(number)
        try:
            data = disk.read(path)
        except FileNotFoundError:
            return None
        entry = _decoded(data, path)
        if entry.flow != self._flow or entry.epoch.number != number:
            raise ConflictError(
                f"{path} shows epoch {entry.epoch.number} of {entry.flow.flow!r} ({entry.flow.sink!r}), "
                f"not epoch {number} of {self._flow.flow!r} ({self._flow.sink!r})"
            ).with_hint("the directory was written by another flow; give this sink a path of its own")
        return entry


def read_index(path: str | os.PathLike[str]) -> Iterator[ShownEpoch]:
    """Every epoch that any flow shows in the directory ``path``, flow by flow, each in epoch order."""
    root = os.path.abspath(os.fspath(path))
    owners = os.path.join(root, HIDDEN, "epochs")
    for name in disk.names_in(owners):
        newest = next(_numbers(os.path.join(owners, name), descending=True), None)
        if newest is None:
            continue
        entry = os.path.join(owners, name, f"{newest // _TOGETHER:09}", f"{newest:012}.json")
        yield from EpochIndex(root, _decoded(disk.read(entry), entry).flow).shown()


def shown_files(path: str | os.PathLike[str]) -> list[str]:
    """The files of whole epochs only, as absolute paths: ``spark.read.parquet(*shown_files(path))``.

    With partitioned output, give Spark the ``basePath`` option too. An epoch that is being committed
    right now is in it as a whole or not at all; a reader of the plain directory may see it arrive.
    """
    root = os.path.abspath(os.fspath(path))
    return [os.path.join(root, file.name) for epoch in read_index(root) for file in epoch.files]


def check_same_attempt(there: ShownEpoch, epoch: Epoch) -> None:
    """Raise ConflictError if an epoch is shown as the work of another checkpoint than ``epoch``'s."""
    if there.epoch.id != epoch.id:
        raise ConflictError(
            f"sink {there.flow.sink!r} already shows epoch {epoch.number} of {there.flow.flow!r}, "
            f"from checkpoint {there.epoch.id}; now it is to come from {epoch.id}"
        ).with_hint("another store's flow of the same name wrote it; give this sink a path of its own")


def _numbers(entries: str, *, descending: bool = False) -> Iterator[int]:
    for shelf in sorted(disk.names_in(entries), reverse=descending):
        for name in sorted(disk.names_in(os.path.join(entries, shelf)), reverse=descending):
            matched = _ENTRY.fullmatch(name)
            if matched:
                yield int(matched[1])


def _covers(ranges: list[tuple[int, int]], number: int) -> bool:
    return any(first <= number <= last for first, last in ranges)


def _encoded(entry: ShownEpoch) -> bytes:
    document = {
        "version": _VERSION,
        "flow": entry.flow.flow,
        "sink": entry.flow.sink,
        "epoch": entry.epoch.number,
        "checkpoint_id": str(entry.epoch.id),
        "generation": entry.epoch.generation,
        "files": [
            {"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256} for file in entry.files
        ],
    }
    return pretty({**document, "digest": sha256_hex(canonical(document))})


def _decoded(data: bytes, path: str) -> ShownEpoch:
    document = parse_object(data, path)
    digest = document.pop("digest", None)
    if digest != sha256_hex(canonical(document)):
        raise CorruptError(path, "its digest does not match").with_hint(
            f"move it aside, then: the epoch is shown, and its files are named part-*-*-*-* beside {HIDDEN}"
        )
    if document.get("version") != _VERSION:
        raise UnsupportedFormatError(path, f"version {document.get('version')!r}")
    try:
        return ShownEpoch(
            SinkFlow(document["flow"], document["sink"]),
            Epoch(document["epoch"], CheckpointId.parse(document["checkpoint_id"]), document["generation"]),
            tuple(ShownFile(one["name"], one["size_bytes"], one["sha256"]) for one in document["files"]),
        )
    except (KeyError, TypeError, InvalidInputError) as error:
        raise CorruptError(path, f"it is not an epoch's entry: {error}") from error
