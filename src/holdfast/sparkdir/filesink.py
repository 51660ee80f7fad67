"""Spark's own file sink, seen from outside: what its log has, and how to take it back behind a batch.

The sink skips every batch id that its log ``_spark_metadata`` already has, whoever wrote it. A query restored
to batch 2 runs batches 3 to 6 again, and the sink drops their rows without a word, if it has a 6. So before
such a query starts, the log must end at the restored batch (``rewind``), or the restored batch must be
published under an id the sink has not seen (``rebase``, in its own module).

    <sink>/_spark_metadata/N, N.compact       per batch the files it added; a compacted one has all so far
    <sink>/_holdfast_backup/<kept>-<last>/    what a rewind took away, and plan.json, written first
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from holdfast.blobs.base import BlobStore
from holdfast.blobs.opening import open_blobs
from holdfast.errors import CorruptError, KeyNotFoundError, UnsupportedFormatError

LOG = "_spark_metadata/"
BACKUP = "_holdfast_backup/"
_ENTRY = re.compile(r"([0-9]+)(\.compact)?")


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """Take away everything after batch ``kept`` (-1: everything). Keys are relative to the sink."""

    kept: int
    last: int
    log_entries: tuple[str, ...]
    data_files: tuple[str, ...]

    @property
    def backup(self) -> str:
        return f"{BACKUP}{self.kept}-{self.last}/"


class FileSink:
    """The output directory of a query's file sink. Nothing else may write to it meanwhile."""

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self._url = os.fspath(location)
        self._blobs: BlobStore = open_blobs(location)

    def latest_batch(self) -> int | None:
        """The newest batch that the sink has. A query that is to add rows must start above it."""
        return max(self._entries(), default=None)

    def plan_rewind(self, batch: int) -> RewindPlan | None:
        """What to take away so that the sink ends at ``batch``; None if it has nothing newer.

        Raises UnsupportedFormatError where the log no longer tells which files came after: Spark deletes
        single entries some time after compacting them.
        """
        entries = self._entries()
        newer = {n: key for n, key in entries.items() if n > batch}
        if not newer:
            return None
        kept = self._files_of_run(entries, batch)
        data = [file for key in newer.values() for file in self._files(key) if file not in kept]
        return RewindPlan(
            batch, max(newer), tuple(newer[n] for n in sorted(newer)), tuple(dict.fromkeys(data))
        )

    def rewind(self, plan: RewindPlan) -> str:
        """Carry out ``plan``; returns where the backup lies. May be called again after a crash.

        Everything is copied before anything goes, and the newest log entry goes first: whatever survives a
        crash is a log without holes, and ``plan_unfinished`` finds the rest.
        """
        document = json.dumps(
            {
                "kept": plan.kept,
                "last": plan.last,
                "log_entries": list(plan.log_entries),
                "data_files": list(plan.data_files),
            }
        )
        self._blobs.put(f"{plan.backup}plan.json", document.encode())
        taken = (*plan.log_entries, *plan.data_files)
        for key in taken:
            try:
                # Hidden in the backup, so that no reader of the sink takes it for output.
                self._blobs.put(f"{plan.backup}{key}", self._blobs.get(key))
            except KeyNotFoundError:
                continue  # gone already, in an earlier attempt
        for key in (*reversed(plan.log_entries), *plan.data_files):
            self._blobs.delete(key)
            # Hadoop's checksum of it, on a local disk: a stale one would condemn the next file of this name.
            folder, _, name = key.rpartition("/")
            self._blobs.delete(f"{folder}/.{name}.crc" if folder else f".{name}.crc")
        self._blobs.put(f"{plan.backup}done", b"")
        return f"{self._url.rstrip('/')}/{plan.backup}"

    def plan_unfinished(self) -> RewindPlan | None:
        """A rewind that was begun and not finished. Carry it out before anything else."""
        keys = {info.key for info in self._blobs.list(BACKUP)}
        for key in sorted(keys):
            directory, _, name = key.rpartition("/")
            if name == "plan.json" and f"{directory}/done" not in keys and directory.count("/") == 1:
                return _plan(self._blobs.get(key), key)
        return None

    def _entries(self) -> dict[int, str]:
        found = {}
        for info in self._blobs.list(LOG):
            match = _ENTRY.fullmatch(info.key.removeprefix(LOG))
            if match is not None:
                found[int(match[1])] = info.key
        return found

    def _files_of_run(self, entries: dict[int, str], batch: int) -> set[str]:
        """The files of every batch up to ``batch``: down from it to a compacted entry, or to the first."""
        files: set[str] = set()
        for n in range(batch, -1, -1):
            key = entries.get(n)
            if key is None:
                raise UnsupportedFormatError(
                    f"{LOG}{n}", f"Spark has deleted it, so what came after batch {batch} can't be told"
                ).with_hint("restore with --sinks rebase, or restore a newer checkpoint")
            files.update(self._files(key))
            if key.endswith(".compact"):
                break
        return files

    def _files(self, key: str) -> list[str]:
        try:
            version, *lines = self._blobs.get(key).decode().split("\n")
            if version != "v1":
                raise UnsupportedFormatError(key, f"sink log version {version[:20]!r}")
            return [self._relative(json.loads(line)["path"], key) for line in lines if line]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(key, f"not a file sink's log: {error!r}") from error

    def _relative(self, uri: str, key: str) -> str:
        """The key of an absolute URI in the log. A file outside the sink is not ours to take away."""
        path, root = _path(uri), _path(os.path.abspath(self._url) if "://" not in self._url else self._url)
        if not path.startswith(root.rstrip("/") + "/") or "/../" in path:
            raise CorruptError(key, f"names {uri!r}, outside the sink")
        return path[len(root.rstrip("/")) + 1 :]


def _path(uri: str) -> str:
    """Host and path of a URI, without its scheme: Spark writes ``file:///x`` for what we call ``/x``."""
    if "://" not in uri and not uri.startswith("file:"):
        return uri
    parts = urlsplit(uri)
    return parts.netloc + unquote(parts.path)


def _plan(data: bytes, key: str) -> RewindPlan:
    try:
        document = json.loads(data)
        names = [tuple(str(name) for name in document[part]) for part in ("log_entries", "data_files")]
        return RewindPlan(int(document["kept"]), int(document["last"]), names[0], names[1])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(key, f"not a rewind plan: {error!r}") from error
