"""``holdfast offsets show``: what is stored, for people and programs, and nothing made on the way."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from holdfast.positions import Marker, open_positions
from holdfast.positions.describing import position_text
from holdfast.testing.positions import committed


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with open_positions(tmp_path / "p", "orders") as store:
        committed(
            store, ("kafka", 2**64 - 1, b'{"0": 41}'), ("wal", 7, b"\0\xff"), ("none", 1), ("empty", 2, b"")
        )
        store.write_config_hash(15788932903817395036)
        store.write_result_sequence("orders", 12)
        store.write_marker(Marker.BOOTSTRAPPED)
    with open_positions(tmp_path / "p", "trades") as store:
        store.clear_checkpoints()
    return tmp_path / "p"


def test_one_query_as_json(place: Path, document: Callable[..., Any]) -> None:
    assert document("offsets", "show", "--store", place, "--query", "orders") == [
        {
            "query_id": "orders",
            "generation": 0,
            "config_hash": 15788932903817395036,
            "result_sequence": 12,
            "markers": ["bootstrapped"],
            "sources": [
                {"source_id": "empty", "sequence": 2} | told(b"", ""),
                {"source_id": "kafka", "sequence": 2**64 - 1} | told(b'{"0": 41}', '{"0": 41}'),
                {"source_id": "none", "sequence": 1} | told(None, None),
                {"source_id": "wal", "sequence": 7} | told(b"\0\xff", None),
            ],
        }
    ]


def told(position: bytes | None, text: str | None) -> dict[str, Any]:
    return {
        "position_base64": None if position is None else base64.b64encode(position).decode(),
        "position_text": text,
        "position_bytes": None if position is None else len(position),
    }


def test_all_queries_in_words(place: Path, ask: Callable[..., Result]) -> None:
    result = ask("offsets", "show", "--store", f"sqlite:///{place}/positions.db")

    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["query", "orders"] in lines
    assert ["kafka", str(2**64 - 1), '{"0":', "41}"] in lines
    assert ["wal", "7", "0x00ff"] in lines
    assert ["none", "1", "-"] in lines
    assert ["query", "trades"] in lines
    assert ["generation", "1"] in lines


def test_a_rocksdb_below_its_base(tmp_path: Path, document: Callable[..., Any]) -> None:
    pytest.importorskip("rocksdict")
    for name in ("a", "b"):
        with open_positions(f"rocksdb://{tmp_path}", name) as store:
            committed(store, ("s", 1))

    found = document("offsets", "show", "--store", f"rocksdb://{tmp_path}")

    assert [one["query_id"] for one in found] == ["a", "b"]


@pytest.mark.parametrize("url", ["DIR/none", "sqlite:///DIR/none.db", "rocksdb://DIR/none"])
def test_nothing_there_is_said_and_nothing_is_made(
    tmp_path: Path, ask: Callable[..., Result], url: str
) -> None:
    result = ask("offsets", "show", "--store", url.replace("DIR", str(tmp_path)))

    assert result.exit_code == 10
    assert "there are no positions" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_query_that_is_not_there(place: Path, ask: Callable[..., Result]) -> None:
    result = ask("offsets", "show", "--store", place, "--query", "other")

    assert result.exit_code == 10
    assert "'other'" in result.stderr


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "ftp://bucket", "memory://"])
def test_a_place_that_needs_more_or_keeps_nothing_is_a_usage_error(
    ask: Callable[..., Result], url: str
) -> None:
    assert ask("offsets", "show", "--store", url).exit_code == 2


def test_a_position_is_shown_on_one_line() -> None:
    assert [position_text(each) for each in (None, b"", b"abc", b"\xff", b"a\nb")] == [
        *("-", "(0 bytes)", "abc", "0xff", "0x610a62"),
    ]
    assert position_text(b"x" * 1000).endswith("… (1000 bytes)")
    assert position_text(b"\xff" * 1000).endswith("… (1000 bytes)")


def test_a_flows_root_shows_where_its_newest_checkpoint_stands(
    query: Any, tmp_path: Path, ask: Callable[..., Result], document: Callable[..., Any]
) -> None:
    ask("capture", query.root, "--store", tmp_path / "captured")

    (told,) = document("offsets", "show", "--store", tmp_path / "captured")

    assert list(told) == ["checkpoint_id", "epoch", "batch_id", "sources"]
    assert (told["epoch"], told["batch_id"]) == (1, 1)
    ((source,),) = [told["sources"]]
    assert source["offsets"]
    shown = ask("offsets", "show", "--store", tmp_path / "captured").stdout
    assert f"source {source['source_id']} reads next from" in shown
    assert all(str(value) in shown for value in source["offsets"].values())


def test_a_flow_that_has_none_yet_has_nothing_to_show(flow: Any, ask: Callable[..., Result]) -> None:
    assert ask("offsets", "show", "--store", flow.root).exit_code == 10
