"""What Spark's file writers do with names, empty files and times, format by format. No epochs here."""

from __future__ import annotations

import bz2
import gzip
import os
import re
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any

from holdfast.errors import MissingExtraError, UnsupportedFormatError

if TYPE_CHECKING:
    from holdfast.coordinator.sink import Epoch

FORMATS = ("parquet", "json", "csv", "orc")

# Spark's own name for a task's file: number, job, and a count that grows when a task writes several.
_WRITTEN = re.compile(
    r"part-([0-9]{5,})-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}[-.]c([0-9]{3,})(\.[A-Za-z0-9.]+)"
)

_ALWAYS = {
    # A partition's directory name holds a time as text; it must not depend on the session.
    "timeZone": "UTC",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
}
_TEXT = {
    # Spark's own default stops at milliseconds, without a word.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def writer_options(format: str, options: Mapping[str, str]) -> dict[str, str]:
    """What Spark's writer is told. The user's own options win."""
    ours = {**_ALWAYS, **(_TEXT if format in ("json", "csv") else {})}
    theirs = {name.lower() for name in options}
    return {**{name: value for name, value in ours.items() if name.lower() not in theirs}, **options}


def shown_name(written: str, epoch: Epoch, part: int, format: str) -> str | None:
    """The visible name of a file that Spark wrote, directories kept; None for what is no output.

    Raises UnsupportedFormatError for a name we do not know: rows must not stay behind unseen.
    """
    directory, name = os.path.split(written)
    if name.startswith((".", "_")):
        return None
    matched = _WRITTEN.fullmatch(name)
    if matched is None:
        raise UnsupportedFormatError(written, "Spark named a file in a way this version does not know")
    task, count, extension = int(matched[1]), int(matched[2]), matched[3]
    if extension.endswith(f".{format}"):
        # .snappy.parquet: the codec is inside the file, its name has no use for it.
        extension = f".{format}"
    several = f"-{count:03}" if count else ""
    ours = f"part-{epoch.number:012}-{part:03}-{task:05}-{str(epoch.id)[-8:]}{several}{extension}"
    return os.path.join(directory, ours)


def has_rows(path: str, format: str, options: Mapping[str, str]) -> bool:
    """Whether a file holds a row. Spark's first task writes its file even when it has none to write.

    Only a file of the first task need be asked; a doubt counts as rows.
    """
    matched = _WRITTEN.fullmatch(os.path.basename(path))
    if matched is None or int(matched[1]) or int(matched[2]):
        return True
    if format == "parquet":
        return int(_pyarrow("pyarrow.parquet").read_metadata(path).num_rows) > 0
    if format == "orc":
        return int(_pyarrow("pyarrow.orc").ORCFile(path).nrows) > 0
    headers = 1 if format == "csv" and _is_true(options, "header") else 0
    return _has_lines(path, more_than=headers)


def _has_lines(path: str, *, more_than: int) -> bool:
    openers: Mapping[str, Callable[..., IO[Any]]] = {".gz": gzip.open, ".bz2": bz2.open}
    extension = os.path.splitext(path)[1]
    if extension not in (".json", ".csv", *openers):
        return os.path.getsize(path) > 0
    with openers.get(extension, open)(path, "rb") as file:
        for _ in range(more_than + 1):
            if not file.readline():
                return False
    return True


def _is_true(options: Mapping[str, str], name: str) -> bool:
    return any(key.lower() == name and str(value).lower() == "true" for key, value in options.items())


def _pyarrow(module: str) -> Any:
    try:
        return __import__(module, fromlist=["_"])
    except ImportError as error:
        raise MissingExtraError("spark", "a Files sink") from error
