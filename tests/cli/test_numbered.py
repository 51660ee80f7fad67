"""Stores of numbered (v1) checkpoints: list, show, verify and recover --dry-run read them as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import Result

from holdfast.blobs import FileBlobs
from holdfast.manifest import CheckpointManifest, ConnectorCheckpoint, OperatorCheckpoint, SinkCommitStatus
from holdfast.store import FileSystemCheckpointStore, NumberedCheckpointStore, ObjectStoreCheckpointStore

Ask: TypeAlias = Callable[..., Result]
Document: TypeAlias = Callable[..., Any]


@pytest.fixture(params=["files", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> NumberedCheckpointStore:
    """Checkpoints 1 and 2, of epochs 11 and 12, each with a sidecar."""
    if request.param == "files":
        made: NumberedCheckpointStore = FileSystemCheckpointStore(tmp_path)
    else:
        made = ObjectStoreCheckpointStore(FileBlobs(tmp_path))
    for number in (1, 2):
        manifest = CheckpointManifest.new(number, number + 10, timestamp_ms=1_700_000_000_000)
        manifest.operator_states = {"sum": OperatorCheckpoint.from_bytes(b"external", 2, 0)[0]}
        manifest.source_offsets = {"trades": ConnectorCheckpoint(offsets={"partition-0": "17"}, epoch=number)}
        manifest.sink_commit_statuses = {"db": SinkCommitStatus.COMMITTED}
        manifest.size_bytes = 8
        made.save_with_state(manifest, b"external")
    return made


def flip(root: Path, key: str | None) -> str:
    assert key is not None
    data = bytearray((root / key).read_bytes())
    data[len(data) // 2] ^= 1
    (root / key).write_bytes(data)
    return key


def test_list_has_the_same_keys_as_for_every_store(
    store: NumberedCheckpointStore, tmp_path: Path, ask: Ask, document: Document
) -> None:
    told = document("list", "--store", tmp_path)

    assert told == [
        {
            "checkpoint_id": str(number),
            "epoch": number + 10,
            "batch_id": None,
            "timestamp_ms": 1_700_000_000_000,
            "kind": "checkpoint",
            "parent_id": None,
            "total_size_bytes": 8,
            "status": "committed",
            "tags": [],
        }
        for number in (1, 2)
    ]
    rows = ask("list", "--store", tmp_path).stdout.splitlines()
    assert [row.split()[:2] for row in rows[1:]] == [["1", "11"], ["2", "12"]]


def test_list_keeps_a_corrupt_one_in_its_place(
    store: NumberedCheckpointStore, tmp_path: Path, ask: Ask, document: Document
) -> None:
    flip(tmp_path, store.find_manifest_key(1))

    assert [one["status"] for one in document("list", "--store", tmp_path)] == ["corrupt", "committed"]
    assert "1 of 2 checkpoints are corrupt" in ask("list", "--store", tmp_path).stderr


@pytest.mark.parametrize("selector", ["latest", "2", "epoch:12"])
def test_show_finds_one_by_its_number_its_epoch_or_as_the_latest(
    store: NumberedCheckpointStore, tmp_path: Path, ask: Ask, document: Document, selector: str
) -> None:
    shown = ask("show", selector, "--store", tmp_path).stdout

    assert document("show", selector, "--store", tmp_path)["checkpoint_id"] == "2"
    assert "source trades stands at" in shown
    assert "partition-0  17" in shown
    assert "operator sum: 8 B of the sidecar" in shown
    assert '"checkpoint_id": 2' in ask("show", selector, "--manifest", "--store", tmp_path).stdout


@pytest.mark.parametrize(("selector", "code"), [("3", 10), ("epoch:13", 10), ("batch:1", 2), ("1a2b3c4d", 2)])
def test_show_says_what_selects_one_here(
    store: NumberedCheckpointStore, tmp_path: Path, ask: Ask, selector: str, code: int
) -> None:
    assert ask("show", selector, "--store", tmp_path).exit_code == code


def test_verify_names_a_flipped_bit_in_a_sidecar(
    store: NumberedCheckpointStore, tmp_path: Path, ask: Ask, document: Document
) -> None:
    sound = ask("verify", "--store", tmp_path, "--read-data")
    key = flip(tmp_path, store.find_state_key(2))

    assert sound.exit_code == 0
    assert ask("verify", "--store", tmp_path).exit_code == 0
    assert ask("verify", "--store", tmp_path, "--read-data").exit_code == 20
    assert [one["key"] for one in document("verify", "--store", tmp_path, "--read-data")["problems"]] == [key]
    assert ask("verify", "1", "--store", tmp_path).exit_code == 0
    assert ask("verify", "latest", "--store", tmp_path).exit_code == 20


def test_recover_steps_back_over_what_is_corrupt(
    store: NumberedCheckpointStore, tmp_path: Path, ask: Ask, document: Document
) -> None:
    sound = ask("recover", "--dry-run", "--store", tmp_path)
    flip(tmp_path, store.find_state_key(2))
    told = document("recover", "--dry-run", "--store", tmp_path)
    back = ask("recover", "--dry-run", "--store", tmp_path)
    flip(tmp_path, store.find_state_key(1))
    stuck = ask("recover", "--dry-run", "--store", tmp_path)

    assert (sound.exit_code, back.exit_code, stuck.exit_code) == (0, 21, 20)
    assert sound.stdout.splitlines()[0] == "chosen   2"
    assert (told["verdict"], told["chosen"], told["chosen_epoch"]) == ("resume", "1", 11)
    assert [one["id"] for one in told["skipped"]] == ["2"]
    assert stuck.stdout.splitlines()[-1] == "stuck: no checkpoint is sound"


@pytest.mark.parametrize("command", [["log"], ["copy", "--to", "/nowhere"], ["tag", "latest", "x"]])
def test_what_needs_a_ledger_says_so_and_touches_nothing(
    store: NumberedCheckpointStore, tmp_path: Path, ask: Ask, command: list[str]
) -> None:
    result = ask(*command, "--store", tmp_path)

    assert result.exit_code == 2
    assert "holds numbered (v1) checkpoints" in result.stderr
    assert store.list_ids() == [1, 2]
    assert not (tmp_path / "ledger").exists()


def test_prune_tells_why_what_stays_does_and_deletes_with_yes(
    store: NumberedCheckpointStore, tmp_path: Path, ask: Ask, document: Document
) -> None:
    for number in (3, 4):
        manifest = CheckpointManifest.new(number, number + 10)
        if number == 4:
            manifest.is_incremental, manifest.parent_id = True, 2
        store.max_retained = 0
        store.save(manifest)

    told = document("prune", "--keep-last", 1, "--store", tmp_path)
    unchanged = store.list_ids()
    done = document("prune", "--keep-last", 1, "--store", tmp_path, "--yes")

    assert {one["checkpoint_id"]: one["reasons"] for one in told["kept"]} == {
        "4": ["newest 1 of 1"],
        "2": ["checkpoint 4 continues it"],
    }
    assert [one["checkpoint_id"] for one in told["removed"]] == ["3", "1"]
    assert unchanged == [1, 2, 3, 4]
    assert (done["deleted"], store.list_ids()) == (2, [2, 4])


def test_prune_knows_one_rule_here(store: NumberedCheckpointStore, tmp_path: Path, ask: Ask) -> None:
    for rules in (["--keep-daily", 1], ["--keep-last", 1, "--keep-tag", "x"]):
        result = ask("prune", *rules, "--store", tmp_path, "--yes")

        assert result.exit_code == 2
        assert "only --keep-last" in result.stderr
    assert store.list_ids() == [1, 2]


def test_gc_deletes_a_sidecar_that_was_never_published(
    store: NumberedCheckpointStore, tmp_path: Path, document: Document
) -> None:
    store.save_state_data(3, b"never published")
    key = store.find_state_key(3)

    young = document("gc", "--store", tmp_path, "--yes")
    told = document("gc", "--min-age", "0s", "--store", tmp_path)
    done = document("gc", "--min-age", "0s", "--store", tmp_path, "--yes")

    assert (young["too_young"], young["deleted"]) == (1, 0)
    assert told["objects"] == [{"key": key, "reason": "no manifest names it"}]
    assert done["deleted"] == 1
    assert store.find_state_key(3) is None
    assert store.load_state_data(2) == b"external"
