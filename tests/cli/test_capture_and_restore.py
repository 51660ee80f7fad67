"""``capture`` and ``restore``: a query's directory into a store, and out again somewhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from click.testing import Result

Ask: TypeAlias = Callable[..., Result]
Document: TypeAlias = Callable[..., Any]
#: What the fixtures ``query`` and ``flow`` give: see conftest.py.
SparkDirectory: TypeAlias = Any
Flow: TypeAlias = Any


def test_a_captured_query_is_restored_with_all_it_needs_to_go_on(
    query: SparkDirectory, tmp_path: Path, ask: Ask, document: Document
) -> None:
    store, target = tmp_path / "store", tmp_path / "elsewhere"

    captured = document("capture", query.root, "--store", store)
    restored = document("restore", captured["checkpoint_id"], "--store", store, "--to", target)

    assert (captured["epoch"], captured["batch_id"], captured["status"]) == (1, 1, "committed")
    assert captured == document("list", "--store", store)[0]
    assert (restored["batch_id"], restored["next_batch_id"], restored["dry_run"]) == (1, 2, False)
    written = {p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("*") if p.is_file()}
    assert written.items() <= query.files().items()
    assert {"metadata", "offsets/1", "commits/1"} <= set(written)


def test_capturing_again_adds_what_is_new_and_nothing_else(
    query: SparkDirectory, tmp_path: Path, document: Document
) -> None:
    store = tmp_path / "store"
    first = document("capture", query.root, "--store", store)
    again = document("capture", query.root, "--store", store)
    query.commit(2)

    later = document("capture", query.root, "--store", store)

    assert again == first
    assert (later["epoch"], later["batch_id"], later["parent_id"]) == (2, 2, first["checkpoint_id"])
    assert len(document("list", "--store", store)) == 2


def test_a_batch_can_be_named(query: SparkDirectory, tmp_path: Path, document: Document) -> None:
    assert document("capture", query.root, "--store", tmp_path / "store", "--batch", 0)["batch_id"] == 0


def test_a_person_is_told_what_was_captured_and_restored(
    query: SparkDirectory, tmp_path: Path, ask: Ask
) -> None:
    captured = ask("capture", query.root, "--store", tmp_path / "store")
    restored = ask("restore", "latest", "--store", tmp_path / "store", "--to", tmp_path / "target")

    assert f"is epoch 1: batch 1 of {query.root}" in captured.stdout
    assert "a query there goes on with batch 2" in restored.stdout


def test_a_directory_without_a_batch_is_refused_and_no_store_is_made(tmp_path: Path, ask: Ask) -> None:
    (tmp_path / "empty").mkdir()

    result = ask("capture", tmp_path / "empty", "--store", tmp_path / "store")

    assert result.exit_code == 10
    assert "hint: give the checkpointLocation of a query" in result.stderr
    assert not (tmp_path / "store").exists()


def test_a_dry_run_says_what_would_be_written_and_writes_nothing(
    query: SparkDirectory, tmp_path: Path, ask: Ask, document: Document
) -> None:
    store, target = tmp_path / "store", tmp_path / "target"
    captured = document("capture", query.root, "--store", store)

    told = document("restore", "latest", "--store", store, "--to", target, "--dry-run")
    said = ask("restore", "latest", "--store", store, "--to", target, "--dry-run").stdout

    assert (told["checkpoint_id"], told["dry_run"]) == (captured["checkpoint_id"], True)
    assert told["chain"] == [captured["checkpoint_id"]]
    assert said.startswith(f"would restore {captured['checkpoint_id']} (epoch 1, batch 1)")
    assert not target.exists()


def test_a_dry_run_finds_what_a_restore_would_trip_over(
    query: SparkDirectory, tmp_path: Path, ask: Ask, document: Document
) -> None:
    store = tmp_path / "store"
    captured = document("capture", query.root, "--store", store)
    (pack,) = (store / "checkpoints" / captured["checkpoint_id"]).glob("batch-*.lz4")
    pack.write_bytes(pack.read_bytes()[:-1])

    dry = ask("restore", "latest", "--store", store, "--to", tmp_path / "a", "--dry-run")
    wet = ask("restore", "latest", "--store", store, "--to", tmp_path / "b")

    assert (dry.exit_code, wet.exit_code) == (20, 20)
    assert dry.stdout == ""


def test_a_target_that_holds_anything_is_refused(
    query: SparkDirectory, tmp_path: Path, ask: Ask, document: Document
) -> None:
    before = query.files()
    document("capture", query.root, "--store", tmp_path / "store")

    result = ask("restore", "latest", "--store", tmp_path / "store", "--to", query.root)

    assert result.exit_code == 11
    assert "is not empty\nhint: restore into a new directory" in result.stderr
    assert query.files() == before


def test_a_dry_run_refuses_what_a_restore_would_refuse(
    query: SparkDirectory, flow: Flow, tmp_path: Path, ask: Ask, document: Document
) -> None:
    document("capture", query.root, "--store", tmp_path / "store")
    flow.decide(1)

    full = ask("restore", "latest", "--store", tmp_path / "store", "--to", query.root, "--dry-run")
    not_sparks = ask("restore", "latest", "--store", flow.root, "--to", tmp_path / "target", "--dry-run")

    assert full.exit_code == 11
    assert "is not an empty directory\nhint: restore into a new directory" in full.stderr
    assert not_sparks.exit_code == 2
    assert "was not taken from a Spark checkpoint" in not_sparks.stderr


def test_a_checkpoint_that_is_not_sparks_is_refused(flow: Flow, tmp_path: Path, ask: Ask) -> None:
    flow.decide(1)

    result = ask("restore", "latest", "--store", flow.root, "--to", tmp_path / "target")

    assert result.exit_code == 2
    assert "was not taken from a Spark checkpoint" in result.stderr


def test_taking_a_flow_back_is_refused_as_not_supported_yet(flow: Flow, ask: Ask) -> None:
    flow.decide(1)

    back = ask("restore", "latest", "--store", flow.root, "--sinks", "rewind")
    nowhere = ask("restore", "latest", "--store", flow.root)

    assert (back.exit_code, nowhere.exit_code) == (2, 2)
    assert "not supported yet; --to DIR" in back.stderr
    assert "Missing option '--to'" in nowhere.stderr
