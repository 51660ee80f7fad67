"""A restored batch under a later number: for sinks that skip every batch id they have seen.

State and positions stay those of batch N; the directory says N + shift. Versions are shifted in the names of
state files and, in format 2, in the lineage inside changelogs. What Spark starts from are two offsets, one
commit and the state version after it, so that is all there is to rewrite.

Proven for HDFS-backed state, and for RocksDB where a snapshot exists to start from. RocksDB state that
consists of changelogs from the very first batch on can't be shifted: Spark takes version 1, and no other, for
the beginning, and a snapshot can't be made without RocksDB.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

from holdfast.errors import InvalidInputError, UnsupportedFormatError
from holdfast.sparkdir.reading import SparkCheckpoint
from holdfast.sparkdir.required import CODEC, BatchPlan, RequiredFile, plan_batch
from holdfast.sparkdir.statefiles import decompressed, frame_lz4, read_changelog_header, write_lineage

_STATE_FILE = re.compile(r"([0-9]+)((?:_[^./]+)?\.(delta|snapshot|changelog|zip)(?:\.crc)?)")


def rebase(directory: Path, *, batch: int, onto: int) -> None:
    """Make ``directory``, freshly materialised at ``batch``, resume after ``onto`` instead.

    Raises UnsupportedFormatError for state that can't be shifted; the directory is then as it was. A crash
    leaves one without ``metadata``, which Spark refuses.
    """
    if onto <= batch:
        raise InvalidInputError(f"batch {batch} can only be published under a later number, not {onto}")
    checkpoint = SparkCheckpoint(directory)
    plan = plan_batch(checkpoint, batch)
    files = _shifted(checkpoint, plan, onto - batch)
    metadata = checkpoint.read("metadata")
    # First away, last back: in between this is no checkpoint.
    (directory / "metadata").unlink()
    for old in (*_below(directory, "offsets"), *_below(directory, "commits"), *_state_files(directory)):
        old.unlink()
    for path, data in files.items():
        (directory / path).write_bytes(data)
    (directory / "metadata").write_bytes(metadata)
    plan_batch(SparkCheckpoint(directory), onto)


def _shifted(checkpoint: SparkCheckpoint, plan: BatchPlan, shift: int) -> dict[str, bytes]:
    n = plan.batch
    files = {
        f"offsets/{n + shift - 1}": plan.contents.get(f"offsets/{n - 1}", plan.contents[f"offsets/{n}"]),
        f"offsets/{n + shift}": plan.contents[f"offsets/{n}"],
        f"commits/{n + shift}": plan.contents[f"commits/{n}"],
    }
    rewritten = {file.path for file in plan.files if file.role == "changelog" and file.unique}
    for file in plan.files:
        # Spark accepts a file without its checksum, and not one that is no longer true.
        if file.partition is None or file.role == "sst" or file.path.removesuffix(".crc") in rewritten:
            continue
        files[_renamed(file.path, shift)] = checkpoint.read(file.path)
    for path in rewritten:
        codec = plan.offsets.conf.get(CODEC, "lz4")
        files[_renamed(path, shift)] = _changelog(checkpoint.read(path), codec, path, shift)
    for directory, without_snapshot in _directories(plan.files).items():
        if without_snapshot == "delta":
            files[f"{directory}/{shift}.snapshot"] = frame_lz4(struct.pack(">i", -1))
        elif without_snapshot is not None:
            raise UnsupportedFormatError(
                directory, "RocksDB changelogs without a snapshot can't be moved to another batch number"
            ).with_hint("restore a checkpoint taken after the first snapshot, or use --sinks rewind")
    return files


def _directories(files: list[RequiredFile]) -> dict[str, str | None]:
    """Each store's directory → None if it has a snapshot, else the role of what it consists of."""
    found: dict[str, str | None] = {}
    for file in files:
        if file.role in ("delta", "changelog", "snapshot"):
            directory = file.path.rpartition("/")[0]
            has_snapshot = file.role == "snapshot" or found.get(directory, file.role) is None
            found[directory] = None if has_snapshot else file.role
    return found


def _renamed(path: str, shift: int) -> str:
    directory, _, name = path.rpartition("/")
    match = _STATE_FILE.fullmatch(name)
    if match is None:
        raise UnsupportedFormatError(path, "a state file whose version is not in its name")
    return f"{directory}/{int(match[1]) + shift}{match[2]}"


def _changelog(data: bytes, codec: str, path: str, shift: int) -> bytes:
    header = read_changelog_header(data, codec, path)
    plain = b"".join(decompressed(data, codec, path))
    if header.lineage is None or codec != "lz4":
        raise UnsupportedFormatError(
            path, f"a changelog of version {header.version}, compressed with {codec}"
        )
    return frame_lz4(write_lineage(plain, header.lineage, shift))


def _below(directory: Path, name: str) -> list[Path]:
    return [path for path in (directory / name).iterdir() if path.is_file()]


def _state_files(directory: Path) -> list[Path]:
    state = directory / "state"
    return [path for path in state.rglob("*") if path.is_file() and _STATE_FILE.fullmatch(path.name)]
