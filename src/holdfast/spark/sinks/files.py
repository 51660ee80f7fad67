"""A sink of files in a directory that any reader can read. Nothing here decides anything.

Spark writes an attempt's files below a hidden directory; they are synced, and known by size and
SHA-256, before ``prepare`` returns. ``commit`` gives each its visible name, without copying.

    {path}/part-000000000041-000-00003-1a2b3c4d.parquet      epoch, part, task, end of the id
    {path}/_holdfast/staged/{flow and sink}/{generation}-{epoch}-{id}/{part}/…
    {path}/_holdfast/epochs, rewound                         see epoch_index

Invariants; the code cites them:

S1  A staged file has the relative name it will be shown under, so the staging directory alone says
    what a commit may have shown.
S2  Staged files go before visible ones when an epoch is taken back, by one rename: a commit that is
    still at work then finds nothing left to move.
S3  The staging directory of a decided epoch goes only after the epoch's index entry is durable.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from holdfast.coordinator.sink import Decided, Epoch, Outcome, SinkFlow, StagedOutputGoneError
from holdfast.errors import ConflictError, InvalidInputError
from holdfast.manifest import Receipt
from holdfast.spark.sinks import disk
from holdfast.spark.sinks.attempts import Attempt, attempt_directory, owner_directory, parse_directory
from holdfast.spark.sinks.epoch_index import HIDDEN, EpochIndex, ShownEpoch, ShownFile, check_same_attempt
from holdfast.spark.sinks.file_formats import FORMATS, has_rows, shown_name, writer_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_GONE = "gone-"

AnyPath: TypeAlias = str | os.PathLike[str]


class Files:
    """Rows as files in the local directory ``path``, which every executor must see under the same path.

    ``options`` go to Spark's writer as they are. Several flows may share a directory.
    """

    #: ``prepare`` is one action that computes each partition once, so that nothing need be cached for it.
    computes_once = True

    def __init__(
        self,
        path: AnyPath,
        format: str = "parquet",
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        if format not in FORMATS:
            raise InvalidInputError(f"no file format {format!r}; there are {', '.join(FORMATS)}")
        if isinstance(partition_by, str):
            raise InvalidInputError(f"partition_by is a list of columns: [{partition_by!r}]")
        if any(name.lower() == "path" for name in options or {}):
            raise InvalidInputError("the option 'path' would lead past the staging directory")
        self.path = _local(path)
        self.format = format
        self.partition_by = tuple(partition_by)
        self.options = dict(options or {})
        self._owner: SinkFlow | None = None
        # What this very process has hashed need not be hashed again by its commit.
        self._sealed_here: set[str] = set()
        self._can_link = False

    def __repr__(self) -> str:
        return f"Files({self.path!r}, format={self.format!r}, partition_by={self.partition_by!r})"

    def open(self, flow: SinkFlow) -> Epoch | None:
        """Check the directory, changing nothing, and say which epoch of ``flow`` it shows newest."""
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise InvalidInputError(f"the path of sink {flow.sink!r}, {self.path}, is not a directory")
        self._owner = flow
        with self._errors("reading"):
            newest = self._index.newest()
        return newest.epoch if newest else None

    def begin(self, epoch: Epoch) -> None:
        """Make the attempt's staging directory, and see that files can be moved from there."""
        with self._errors("reading"):
            newest = self._index.newest()
        if newest is not None and newest.epoch.number >= epoch.number:
            raise ConflictError(
                f"{self.path} already shows epoch {newest.epoch.number} of sink {self._flow.sink!r}; "
                f"epoch {epoch.number} was to come next"
            ).with_hint("another store's flow of the same name wrote it; give this sink a path of its own")
        with self._errors("creating"):
            directory = self._attempt(epoch)
            disk.make_directory(directory)
            if not self._can_link:
                # A file system without links is found out before the decision, not after it.
                disk.write_new(os.path.join(directory, f"probe-{secrets.token_hex(4)}"), b"")
                self._can_link = True

    def prepare(self, batch: DataFrame, epoch: Epoch, part: int) -> Receipt:
        """Let Spark write the rows into the staging directory; return the names, sizes and hashes."""
        directory = os.path.join(self._attempt(epoch), f"{part:03}")
        writer = batch.write.format(self.format).mode("errorifexists")
        writer = writer.options(**writer_options(self.format, self.options))
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        # With the scheme, or a cluster's default file system is meant; raw, since Spark escapes it itself.
        writer.save(f"file:{directory}")
        with self._errors("writing"):
            files = self._seal(directory, epoch, part)
        self._sealed_here.add(directory)
        return {
            "staged": os.path.relpath(directory, self.path),
            "files": [
                {"name": one.name, "size_bytes": one.size_bytes, "sha256": one.sha256} for one in files
            ],
        }

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Give every staged file its visible name, then show the epoch in the index."""
        with self._errors("creating"):
            if not self._is_settled(epoch):
                self._move_in(epoch, receipts)
            # S3: the entry is durable, or the epoch was rewound; either way nobody needs the staged files.
            self._drop_staged(epoch, receipts)

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Remove what the attempt staged."""
        del receipts  # the directory holds all that was begun, with or without a receipt
        with self._errors("deleting"):
            shown = self._index.find(epoch.number)
            if shown is not None and shown.epoch.id == epoch.id:
                raise ConflictError(f"epoch {epoch.number} is shown in {self.path}: too late to abort it")
            disk.remove_tree(self._attempt(epoch))

    def outcome(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Outcome:
        """COMMITTED only with an index entry: files that arrived without one are a commit to be finished."""
        del receipts
        with self._errors("reading"):
            shown = self._index.find(epoch.number)
        if shown is None:
            return Outcome.NOT_COMMITTED
        check_same_attempt(shown, epoch)
        return Outcome.COMMITTED

    def sweep(self, generation: int, decided: Decided) -> None:
        """Remove what older generations staged and nobody will ever commit, or already has."""
        with self._errors("deleting"):
            for name, attempt in self._staged():
                if attempt.generation < generation and self._is_done_with(attempt, decided):
                    disk.remove_tree(os.path.join(self._staging, name))

    def rewind(self, first: int, last: int) -> None:
        """Take back the epochs from ``first`` to ``last``, both included, for good. May be repeated."""
        if not 0 < first <= last:
            raise InvalidInputError(f"epochs {first} to {last} are no range")
        with self._errors("deleting"):
            # The tombstone first: from here on no commit of these epochs can succeed, however late.
            self._index.bury(first, last)
            names = [name for name, attempt in self._staged() if first <= attempt.number <= last]
            self._take_back([os.path.join(self._staging, name) for name in names])
            for entry in list(self._index.entries_between(first, last)):
                self._hide([file.name for file in entry.files])
                self._index.forget(entry.epoch.number)

    # --- where things are ----------------------------------------------------------------------

    @property
    def _flow(self) -> SinkFlow:
        if self._owner is None:
            raise InvalidInputError(f"{self!r} has not been opened for a flow")
        return self._owner

    @property
    def _index(self) -> EpochIndex:
        return EpochIndex(self.path, self._flow)

    @property
    def _staging(self) -> str:
        return os.path.join(self.path, HIDDEN, "staged", owner_directory(self._flow))

    def _attempt(self, epoch: Epoch) -> str:
        return os.path.join(self._staging, attempt_directory(Attempt.of(epoch)))

    def _staged(self) -> Iterator[tuple[str, Attempt]]:
        for name in disk.names_in(self._staging):
            attempt = parse_directory(name.removeprefix(_GONE))
            if attempt is not None:
                yield name, attempt

    def _errors(self, doing: str) -> AbstractContextManager[None]:
        return disk.errors_of(self.path, doing)

    # --- preparing -----------------------------------------------------------------------------

    def _seal(self, directory: str, epoch: Epoch, part: int) -> list[ShownFile]:
        """Rename what Spark wrote to the names it will be shown under (S1), and sync it all."""
        names = []
        for written in disk.files_below(directory):
            name = shown_name(written, epoch, part, self.format)
            if name is not None and has_rows(os.path.join(directory, written), self.format, self.options):
                os.rename(os.path.join(directory, written), os.path.join(directory, name))
                names.append(name)
        sealed = disk.side_by_side(lambda name: disk.seal_file(os.path.join(directory, name)), names)
        for below in disk.directories_of(names):
            disk.sync_directory(os.path.join(directory, below))
        disk.sync_directory(os.path.dirname(directory))
        return [ShownFile(name, one.size_bytes, one.sha256) for name, one in zip(names, sealed, strict=True)]

    # --- committing ----------------------------------------------------------------------------

    def _is_settled(self, epoch: Epoch) -> bool:
        """Nothing is left to do: the epoch is shown, or was taken back."""
        if self._index.is_rewound(epoch.number):
            return True
        shown = self._index.find(epoch.number)
        if shown is not None:
            check_same_attempt(shown, epoch)
        return shown is not None

    def _move_in(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        staged = [(self._staged_part(receipt), file) for receipt in receipts for file in _files(receipt)]
        directories = disk.directories_of(file.name for _, file in staged)
        for directory in directories:
            disk.make_directory(os.path.join(self.path, directory))
        missing = disk.side_by_side(partial(self._show, epoch), staged)
        if any(missing):
            if self._is_settled(epoch):
                return
            # Half an epoch must not stay behind: the next feed's files may have other rows under these names.
            named = {os.path.dirname(part) for part, _ in staged}
            self._take_back(sorted(named.union(self._attempts_at(epoch))))
            self._hide([file.name for _, file in staged])
            raise StagedOutputGoneError(self._flow.sink, epoch.number, next(filter(None, missing)))
        for directory in directories:
            disk.sync_directory(os.path.join(self.path, directory))
        self._index.create(ShownEpoch(self._flow, epoch, tuple(file for _, file in staged)))

    def _show(self, epoch: Epoch, what: tuple[str, ShownFile]) -> str | None:
        """Link one staged file to its visible name. Says what is missing when neither is there."""
        part, file = what
        staged, shown = os.path.join(part, file.name), os.path.join(self.path, file.name)
        if os.path.lexists(shown):
            return self._check_shown(shown, staged, file, epoch)
        try:
            if not self._is_sound(staged, part, file):
                return f"{os.path.relpath(staged, self.path)} is damaged"
            # link, not rename: rename replaces what is there, and a second commit could not see whose it was.
            os.link(staged, shown)
        except FileExistsError:
            return self._check_shown(shown, staged, file, epoch)
        except FileNotFoundError:
            # Another process may have just finished this very commit.
            if not os.path.lexists(shown):
                return f"{os.path.relpath(staged, self.path)} is not there"
            return self._check_shown(shown, staged, file, epoch)
        return None

    def _is_sound(self, staged: str, part: str, file: ShownFile) -> bool:
        if part in self._sealed_here:
            return os.stat(staged).st_size == file.size_bytes
        return disk.look_at(staged) == disk.Sealed(file.size_bytes, file.sha256)

    def _check_shown(self, shown: str, staged: str, file: ShownFile, epoch: Epoch) -> str | None:
        """None if what is shown is what is to be shown. Says so when it is of a feed that did not end."""
        if os.path.exists(staged) and os.path.samefile(shown, staged):
            return None
        if disk.look_at(shown) == disk.Sealed(file.size_bytes, file.sha256):
            return None
        if self._is_of_another_feed(shown, file.name, epoch):
            return f"{file.name} was shown by a later feed of the epoch that did not end"
        raise ConflictError(
            f"{shown} is there already, with other bytes than those prepared for epoch {epoch.number}"
        ).with_hint("move that file away, then start again: the epoch is decided and its rows are staged")

    def _is_of_another_feed(self, shown: str, name: str, epoch: Epoch) -> bool:
        """Whether an attempt at this very epoch has the visible file staged; fed again, its bytes differ."""
        for attempt in self._attempts_at(epoch):
            for part in disk.names_in(attempt):
                staged = os.path.join(attempt, part, name)
                if os.path.exists(staged) and os.path.samefile(shown, staged):
                    return True
        return False

    def _attempts_at(self, epoch: Epoch) -> list[str]:
        """The staging directories of this epoch: of the attempt decided, and of those that fed it again."""
        return [
            os.path.join(self._staging, name)
            for name, attempt in self._staged()
            if (attempt.number, attempt.id) == (epoch.number, epoch.id)
        ]

    # --- removing ------------------------------------------------------------------------------

    def _staged_part(self, receipt: Receipt) -> str:
        return os.path.join(self.path, receipt["staged"])

    def _drop_staged(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        named = {os.path.dirname(self._staged_part(receipt)) for receipt in receipts}
        for attempt in sorted({*named, self._attempt(epoch)}):
            disk.remove_tree(attempt)
            self._sealed_here = {part for part in self._sealed_here if os.path.dirname(part) != attempt}

    def _is_done_with(self, attempt: Attempt, decided: Decided) -> bool:
        if self._index.is_rewound(attempt.number) or not decided(attempt.number, attempt.id):
            return True
        shown = self._index.find(attempt.number)
        return shown is not None and shown.epoch.id == attempt.id

    def _take_back(self, attempts: Sequence[str]) -> None:
        """Remove staged attempts and whatever of them may be shown, staged first (S2)."""
        for attempt in attempts:
            gone = attempt
            if not os.path.basename(attempt).startswith(_GONE):
                gone = os.path.join(os.path.dirname(attempt), _GONE + os.path.basename(attempt))
                try:
                    os.rename(attempt, gone)
                except FileNotFoundError:
                    continue
                disk.sync_directory(os.path.dirname(attempt))
            # The staged names are the visible ones (S1), below the part's directory.
            self._hide([name.partition(os.sep)[2] for name in disk.files_below(gone) if os.sep in name])
            disk.remove_tree(gone)

    def _hide(self, names: Sequence[str]) -> None:
        """Remove visible files, for good."""
        for name in names:
            disk.remove(os.path.join(self.path, name))
        for directory in disk.directories_of(names):
            if os.path.isdir(os.path.join(self.path, directory)):
                disk.sync_directory(os.path.join(self.path, directory))


def _local(path: AnyPath) -> str:
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInputError(f"the path of a sink is text, not {path!r}")
    scheme = _SCHEME.match(text)
    if scheme is None:
        return os.path.abspath(text)
    if scheme[1].lower() != "file":
        raise InvalidInputError(f"a Files sink at {scheme[1]}:// is not supported yet").with_hint(
            "use a path on a file system that driver and executors share"
        )
    rest = text[len("file:") :]
    if rest.startswith("//") and not rest.startswith("///"):
        raise InvalidInputError(f"{text!r} names a host; write file:///path")
    return os.path.abspath("/" + rest.lstrip("/"))


def _files(receipt: Receipt) -> list[ShownFile]:
    return [ShownFile(one["name"], one["size_bytes"], one["sha256"]) for one in receipt["files"]]
