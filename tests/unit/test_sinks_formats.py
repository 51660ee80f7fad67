"""What Spark calls a file, and what we show it as."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from holdfast.coordinator.sink import Epoch
from holdfast.errors import UnsupportedFormatError
from holdfast.ids import CheckpointId
from holdfast.spark.sinks.file_formats import has_rows, shown_name, writer_options

EPOCH = Epoch(41, CheckpointId.parse("0195c0de-7000-7abc-8def-01231a2b3c4d"), 7)
JOB = "6f1e5a3c-0f0e-4b5c-9b8a-2d3e4f5a6b7c"


@pytest.mark.parametrize(
    ("written", "format", "shown"),
    [
        (f"part-00003-{JOB}-c000.snappy.parquet", "parquet", "part-000000000041-002-00003-1a2b3c4d.parquet"),
        (f"part-00003-{JOB}-c000.parquet", "parquet", "part-000000000041-002-00003-1a2b3c4d.parquet"),
        (f"part-00003-{JOB}-c001.zstd.orc", "orc", "part-000000000041-002-00003-1a2b3c4d-001.orc"),
        (f"part-00000-{JOB}-c000.json", "json", "part-000000000041-002-00000-1a2b3c4d.json"),
        (f"part-00000-{JOB}-c000.json.gz", "json", "part-000000000041-002-00000-1a2b3c4d.json.gz"),
        (f"a=1/b=%2F/part-00000-{JOB}.c000.csv", "csv", "a=1/b=%2F/part-000000000041-002-00000-1a2b3c4d.csv"),
        (f"part-123456-{JOB}-c1000.csv", "csv", "part-000000000041-002-123456-1a2b3c4d-1000.csv"),
    ],
)
def test_a_shown_name_holds_epoch_part_task_and_the_end_of_the_id(
    written: str, format: str, shown: str
) -> None:
    assert shown_name(written, EPOCH, 2, format) == shown


@pytest.mark.parametrize("written", ["_SUCCESS", f".part-00000-{JOB}-c000.json.crc", "a=1/_committed_1"])
def test_what_readers_do_not_see_is_no_output(written: str) -> None:
    assert shown_name(written, EPOCH, 0, "json") is None


@pytest.mark.parametrize("written", ["part-r-00000.parquet", "data.parquet", "a=1/part-00000.parquet"])
def test_a_name_we_do_not_know_is_an_error_and_not_left_behind(written: str) -> None:
    with pytest.raises(UnsupportedFormatError):
        shown_name(written, EPOCH, 0, "parquet")


@pytest.mark.parametrize(
    ("content", "format", "options", "rows"),
    [
        (b"", "json", {}, False),
        (b'{"a":1}\n', "json", {}, True),
        (b"", "csv", {}, False),
        (b"a,b\n", "csv", {"Header": "TRUE"}, False),
        (b"a,b\n1,2\n", "csv", {"header": "true"}, True),
        (b"1,2\n", "csv", {}, True),
    ],
)
def test_a_file_of_a_header_alone_has_no_rows(
    tmp_path: Path, content: bytes, format: str, options: dict[str, str], rows: bool
) -> None:
    plain = tmp_path / f"part-00000-{JOB}-c000.{format}"
    plain.write_bytes(content)
    packed = tmp_path / f"part-00000-{JOB}-c000.{format}.gz"
    packed.write_bytes(gzip.compress(content))

    assert has_rows(str(plain), format, options) is rows
    assert has_rows(str(packed), format, options) is rows


def test_a_users_options_win_whatever_their_case() -> None:
    options = writer_options("json", {"TIMEZONE": "Asia/Tokyo", "compression": "gzip"})

    assert options["TIMEZONE"] == "Asia/Tokyo"
    assert "timeZone" not in options
    assert options["compression"] == "gzip"
    assert options["timestampFormat"].endswith("SSSSSSXXX")
