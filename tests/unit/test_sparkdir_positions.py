"""What the text of an offset says about the source that wrote it."""

from __future__ import annotations

import pytest

from holdfast.sparkdir import read_position


@pytest.mark.parametrize(
    ("text", "kind", "offsets"),
    [
        (None, "none", {}),
        ('{"logOffset":7}', "file", {"logOffset": "7"}),
        ("12", "rate", {"offset": "12"}),
        (
            '{"offset":90,"timestamp":1700000012000}',
            "rate-micro-batch",
            {"offset": "90", "timestamp": "1700000012000"},
        ),
        (
            '{"orders":{"0":23,"1":17},"eu.orders":{"0":4}}',
            "kafka",
            {"orders-0": "23", "orders-1": "17", "eu.orders-0": "4"},
        ),
        (
            '{"sourceVersion":1,"reservoirId":"b1c2","reservoirVersion":4,"index":-1,"isStartingVersion":false}',
            "delta",
            {
                "sourceVersion": "1",
                "reservoirId": "b1c2",
                "reservoirVersion": "4",
                "index": "-1",
                "isStartingVersion": "false",
            },
        ),
        (
            '{"version":1,"snapshot_id":5,"position":2,"scan_all_files":true}',
            "iceberg",
            {"version": "1", "snapshot_id": "5", "position": "2", "scan_all_files": "true"},
        ),
        ('{"at":30,"shards":[1,2]}', "custom", {"at": "30", "shards": "[1,2]"}),
        ("not json", "custom", {"offset": "not json"}),
        ("true", "custom", {"offset": "true"}),
        ("{}", "custom", {}),
    ],
)
def test_the_shape_of_an_offset_tells_its_source(
    text: str | None, kind: str, offsets: dict[str, str]
) -> None:
    position = read_position(text)

    assert position.kind == kind
    assert position.offsets == offsets


def test_a_topic_of_negative_offsets_is_still_kafkas() -> None:
    # -2 is "earliest" and -1 "latest" in Kafka's own text.
    assert read_position('{"orders":{"0":-2}}').offsets == {"orders-0": "-2"}


def test_nesting_without_end_is_shown_raw() -> None:
    text = "[" * 100_000

    assert read_position(text).offsets == {"offset": text}
