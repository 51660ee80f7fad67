"""``list``, ``show`` and ``log``: what there is, for people and for programs, and which words select it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import Result

from holdfast.manifest import SinkCommitStatus

#: What the fixture ``flow`` gives: see conftest.py.
Flow: TypeAlias = Any

Ask: TypeAlias = Callable[..., Result]
Document: TypeAlias = Callable[..., Any]

KEYS = [
    "checkpoint_id",
    "epoch",
    "batch_id",
    "timestamp_ms",
    "kind",
    "parent_id",
    "total_size_bytes",
    "status",
    "tags",
]


class TestList:
    def test_prints_one_object_a_checkpoint_oldest_first(self, flow: Flow, document: Document) -> None:
        first = flow.decide(1)
        second = flow.decide(2, parent=first)
        flow.settle(2)

        listed = document("list", "--store", flow.root)

        assert [list(entry) for entry in listed] == [KEYS, KEYS]
        assert [entry["checkpoint_id"] for entry in listed] == [str(first), str(second)]
        assert [entry["epoch"] for entry in listed] == [1, 2]
        assert [entry["batch_id"] for entry in listed] == [0, 1]
        assert [entry["parent_id"] for entry in listed] == [None, str(first)]
        assert {entry["kind"] for entry in listed} == {"checkpoint"}
        assert {entry["status"] for entry in listed} == {"committed"}
        assert all(entry["total_size_bytes"] > 0 and entry["timestamp_ms"] > 0 for entry in listed)

    def test_prints_a_plain_table_for_people(self, flow: Flow, ask: Ask) -> None:
        id = flow.decide(1)

        heading, row = ask("list", "--store", flow.root).stdout.splitlines()

        assert heading.split() == ["ID", "EPOCH", "BATCH", "TIME", "KIND", "SIZE", "STATUS", "TAGS"]
        assert row.split()[:3] == [str(id)[-8:], "1", "0"]
        assert row.endswith("pending")

    def test_says_pending_until_a_sink_or_the_next_epoch_confirms(
        self, flow: Flow, document: Document
    ) -> None:
        flow.decide(1)
        before = document("list", "--store", flow.root)
        flow.decide(2)

        after = document("list", "--store", flow.root)

        assert [entry["status"] for entry in before] == ["pending"]
        assert [entry["status"] for entry in after] == ["committed", "pending"]

    def test_says_failed_where_a_sink_refused(self, flow: Flow, document: Document) -> None:
        flow.decide(1)
        flow.settle(1, SinkCommitStatus.failed("disk full"))

        assert [entry["status"] for entry in document("list", "--store", flow.root)] == ["failed"]

    def test_says_abandoned_where_a_restore_went_back_behind_it(self, flow: Flow, document: Document) -> None:
        for epoch in (1, 2, 3):
            flow.decide(epoch)
        flow.go_back_to(1)
        flow.decide(4, batch=1)

        listed = document("list", "--store", flow.root)

        assert [entry["epoch"] for entry in listed] == [1, 2, 3, 4]
        assert [entry["status"] for entry in listed] == ["committed", "abandoned", "abandoned", "pending"]

    def test_holds_what_a_stop_took_along_too(self, flow: Flow, document: Document) -> None:
        flow.decide(1)
        flow.settle(1)
        taken = flow.stop_with_state(1)

        listed = document("list", "--store", flow.root)

        assert [(entry["epoch"], entry["batch_id"], entry["status"]) for entry in listed] == [
            (1, 0, "committed"),
            (1, 0, "committed"),
        ]
        assert document("show", "latest", "--store", flow.root) == listed[1]
        assert listed[1]["checkpoint_id"] == str(taken)

    def test_says_corrupt_where_a_manifest_cannot_be_read(
        self, flow: Flow, ask: Ask, document: Document
    ) -> None:
        flow.decide(1)
        flow.damage("manifest.json", flow.decide(2))

        result = ask("list", "--store", flow.root)

        assert [entry["status"] for entry in document("list", "--store", flow.root)] == [
            "committed",
            "corrupt",
        ]
        assert result.exit_code == 0
        assert "warning: 1 of 2 checkpoints are corrupt\nhint: holdfast verify" in result.stderr

    def test_is_an_empty_array_and_code_10_where_there_is_nothing(self, tmp_path: Path, ask: Ask) -> None:
        result = ask("list", "--store", tmp_path / "nowhere", "--json")

        assert (result.exit_code, json.loads(result.stdout)) == (10, [])
        assert result.stderr.startswith(f"error: there is no checkpoint store at {tmp_path}/nowhere\nhint: ")
        assert not (tmp_path / "nowhere").exists()

    def test_points_to_the_flow_below_a_pipelines_root(self, flow: Flow, ask: Ask) -> None:
        flow.decide(1)

        result = ask("list", "--store", flow.root.parent)

        assert result.exit_code == 10
        assert f"try --store {flow.root.parent}/flow" in result.stderr

    def test_is_empty_and_fine_where_a_run_has_started_and_decided_nothing(
        self, flow: Flow, ask: Ask
    ) -> None:
        result = ask("list", "--store", flow.root, "--json")

        assert (result.exit_code, json.loads(result.stdout)) == (0, [])


class TestSelecting:
    @pytest.mark.parametrize(
        ("selector", "epoch"), [("latest", 3), ("epoch:2", 2), ("batch:0", 1), ("batch:2", 3)]
    )
    def test_by_words(self, flow: Flow, document: Document, selector: str, epoch: int) -> None:
        for number in (1, 2, 3):
            flow.decide(number)

        assert document("show", selector, "--store", flow.root)["epoch"] == epoch

    def test_latest_is_what_show_shows_by_itself(self, flow: Flow, document: Document) -> None:
        for number in (1, 2):
            flow.decide(number)

        assert document("show", "--store", flow.root)["epoch"] == 2

    def test_by_either_end_of_an_id_with_or_without_hyphens(self, flow: Flow, document: Document) -> None:
        ids = [flow.decide(number) for number in (1, 2, 3)]
        wanted = str(ids[1])

        for selector in (wanted, wanted.replace("-", "").upper(), wanted[-8:], wanted[:-4]):
            assert document("show", selector, "--store", flow.root)["checkpoint_id"] == wanted

    def test_an_end_that_fits_several_is_refused_with_them(self, flow: Flow, ask: Ask) -> None:
        ids = [flow.decide(number) for number in (1, 2)]

        result = ask("show", str(ids[0])[:6], "--store", flow.root)

        assert result.exit_code == 2
        assert str(ids[0]) in result.stderr
        assert str(ids[1]) in result.stderr

    def test_after_a_restore_latest_and_batch_go_by_the_timeline(
        self, flow: Flow, document: Document
    ) -> None:
        for number in (1, 2, 3):
            flow.decide(number)
        flow.go_back_to(1)
        back = document("show", "latest", "--store", flow.root)["epoch"]
        flow.decide(4, batch=1)

        assert back == 1
        assert document("show", "latest", "--store", flow.root)["epoch"] == 4
        assert document("show", "batch:1", "--store", flow.root)["epoch"] == 4
        assert document("show", "epoch:2", "--store", flow.root)["status"] == "abandoned"

    def test_a_batch_decided_twice_means_the_one_that_a_restore_led_back_to(
        self, flow: Flow, document: Document
    ) -> None:
        for number in (1, 2):
            flow.decide(number)
        flow.go_back_to(1)
        flow.decide(3, batch=1)
        flow.go_back_to(2)

        assert document("show", "batch:1", "--store", flow.root)["epoch"] == 2
        assert document("show", "epoch:3", "--store", flow.root)["status"] == "abandoned"

    @pytest.mark.parametrize(
        ("selector", "code"),
        [("epoch:9", 10), ("batch:9", 10), ("00000000", 10), ("abc", 2), ("newest", 2), ("epoch:x", 2)],
    )
    def test_what_selects_nothing_is_named(self, flow: Flow, ask: Ask, selector: str, code: int) -> None:
        flow.decide(1)

        result = ask("show", selector, "--store", flow.root)

        assert (result.exit_code, result.stdout) == (code, "")
        assert result.stderr.startswith("error: ")


class TestShow:
    def test_prints_one_such_object(self, flow: Flow, document: Document) -> None:
        flow.decide(1)

        assert document("show", "--store", flow.root) == document("list", "--store", flow.root)[0]

    def test_tells_a_person_about_state_and_sinks(self, flow: Flow, ask: Ask) -> None:
        id = flow.decide(1)

        told = ask("show", "--store", flow.root).stdout

        assert str(id) in told
        assert "operator 0: 1 partitions, 0 of them deltas" in told
        assert "sink db: pending" in told

    def test_prints_the_whole_manifest(self, flow: Flow, ask: Ask) -> None:
        id = flow.decide(1)

        manifest = json.loads(ask("show", "--store", flow.root, "--manifest").stdout)

        stored = json.loads((flow.root / "checkpoints" / str(id) / "manifest.json").read_bytes())
        assert manifest["seal"] == stored["seal"]

    def test_does_not_pass_off_half_a_checkpoint_as_one(self, flow: Flow, ask: Ask) -> None:
        key = flow.damage("manifest.json", flow.decide(1))

        result = ask("show", "--store", flow.root, "--json")

        assert (result.exit_code, result.stdout) == (20, "")
        assert f"error: {key} is corrupt: " in result.stderr


class TestLog:
    def test_prints_every_record_as_it_is_stored(self, flow: Flow, document: Document) -> None:
        flow.decide(1)
        flow.settle(1)

        records = document("log", "--store", flow.root)

        assert [(record["n"], record["kind"]) for record in records] == [
            (1, "start"),
            (2, "checkpoint"),
            (3, "outcome"),
        ]
        stored = json.loads((flow.root / "ledger" / "000000000002.json").read_bytes())
        del stored["sha256"]
        assert records[1] == stored

    def test_tells_a_person_what_each_record_means(self, flow: Flow, ask: Ask) -> None:
        first = flow.decide(1)
        flow.decide(2)
        flow.go_back_to(1)

        lines = ask("log", "--store", flow.root).stdout.splitlines()[1:]

        assert "starts from the beginning" in lines[0]
        assert lines[1].endswith(f"epoch 1 is {str(first)[-8:]}, batch 0, sinks db")
        assert lines[2].endswith("batch 1, sinks db (abandoned)")
        assert lines[3].endswith("back to record 2, sinks rebase")

    def test_can_be_cut_to_the_newest(self, flow: Flow, document: Document) -> None:
        flow.decide(1)

        assert [record["n"] for record in document("log", "--store", flow.root, "--last", 1)] == [2]

    def test_keeps_the_place_of_what_cannot_be_read(self, flow: Flow, document: Document, ask: Ask) -> None:
        flow.decide(1)
        flow.decide(2)
        flow.flip("ledger/000000000002.json")

        records = document("log", "--store", flow.root)

        assert [(record["n"], record["kind"]) for record in records] == [
            (1, "start"),
            (2, "corrupt"),
            (3, "checkpoint"),
        ]
        assert "digest" in records[1]["reason"]
