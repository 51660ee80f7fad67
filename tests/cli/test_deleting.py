"""``prune``, ``gc``, ``tag`` and ``hold``: what stays says why, and nothing goes unless asked twice."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main

#: What the fixture ``flow`` gives: see conftest.py.
Flow: TypeAlias = Any

Ask: TypeAlias = Callable[..., Result]
Document: TypeAlias = Callable[..., Any]


@pytest.fixture
def history(flow: Flow) -> Flow:
    """Five epochs, each checkpoint standing alone, every sink settled."""
    for epoch in range(1, 6):
        flow.decide(epoch)
        flow.settle(epoch)
    return flow


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


class TestPrune:
    def test_tells_what_would_go_and_why_the_others_stay(self, history: Flow, ask: Ask) -> None:
        before = files(history.root)

        result = ask("prune", "--keep-last", 2, "--store", history.root)

        assert result.exit_code == 0
        rows = [line.split()[4] for line in result.stdout.splitlines()[1:6]]
        assert rows == ["delete", "delete", "delete", "keep", "keep"]
        assert "newest 2 of 2" in result.stdout
        assert result.stdout.splitlines()[-1] == "would delete 3 checkpoints and keep 2"
        assert "--yes" in result.stderr
        assert files(history.root) == before

    def test_with_yes_it_does_what_it_told(self, history: Flow, ask: Ask, document: Document) -> None:
        told = document("prune", "--keep-last", 2, "--store", history.root)

        done = document("prune", "--keep-last", 2, "--store", history.root, "--yes")

        assert list(told) == list(done) == ["dry_run", "kept", "removed", "deleted"]
        assert (told["dry_run"], told["deleted"]) == (True, 0)
        assert (done["dry_run"], done["deleted"]) == (False, 3)
        assert [one["epoch"] for one in done["removed"]] == [3, 2, 1]
        assert done["kept"] == told["kept"]
        listed = document("list", "--store", history.root)
        assert [one["epoch"] for one in listed] == [4, 5]
        assert ask("verify", "--store", history.root, "--read-data").exit_code == 0

    def test_what_is_held_stays_with_what_it_stands_on(
        self, flow: Flow, ask: Ask, document: Document
    ) -> None:
        first = flow.decide(1)
        second = flow.decide(2, parent=first)
        for epoch in range(3, 6):
            flow.decide(epoch)
        flow.settle(5)
        ask("hold", second, "audit", "--store", flow.root)

        told = document("prune", "--keep-last", 1, "--store", flow.root, "--yes")

        reasons = {one["epoch"]: one["reasons"] for one in told["kept"]}
        assert "held as 'audit'" in reasons[2]
        assert "epoch 2 continues it" in reasons[1]
        assert reasons.keys() == {1, 2, 5}
        assert [one["epoch"] for one in told["removed"]] == [4, 3]

    def test_rules_add_up(self, history: Flow, ask: Ask, document: Document) -> None:
        ask("tag", "epoch:2", "release-1", "--store", history.root)

        told = document(
            "prune", "--keep-last", 1, "--keep-tag", "release-*", "--keep-daily", 1, "--store", history.root
        )

        reasons = {one["epoch"]: one["reasons"] for one in told["kept"]}
        assert reasons[2] == ["tagged 'release-1'"]
        assert any(reason.startswith("daily: ") for reason in reasons[5])
        assert document("prune", "--keep-within", "1 hour", "--store", history.root)["removed"] == []

    @pytest.mark.parametrize(
        ("rules", "message"),
        [
            ([], "say what to keep"),
            (["--keep-last", "0"], "say what to keep"),
            (["--keep-last", "-1"], "-1 is not in the range"),
            (["--keep-within", "soon"], "not a duration"),
        ],
    )
    def test_no_rule_is_a_wrong_call(self, history: Flow, ask: Ask, rules: list[str], message: str) -> None:
        result = ask("prune", *rules, "--store", history.root, "--yes")

        assert result.exit_code == 2
        assert message in result.stderr
        assert len(history.store.list_ids()) == 5

    def test_its_rules_come_from_the_environment_too(self, history: Flow) -> None:
        by_variable = {
            "HOLDFAST_STORE": str(history.root),
            "HOLDFAST_JSON": "1",
            "HOLDFAST_PRUNE_KEEP_LAST": "1",
            "HOLDFAST_PRUNE_KEEP_WITHIN": "1 ms",
            "HOLDFAST_PRUNE_YES": "1",
        }

        result = CliRunner().invoke(main, ["prune"], env=by_variable)

        assert json.loads(result.stdout)["deleted"] == 4

    def test_nothing_is_deleted_while_a_record_cannot_be_read(self, history: Flow, ask: Ask) -> None:
        history.flip("ledger/000000000004.json")
        before = files(history.root)

        result = ask("prune", "--keep-last", 1, "--store", history.root, "--yes")

        assert result.exit_code == 20
        assert "hint: nothing is deleted while a ledger record cannot be read" in result.stderr
        assert files(history.root) == before


class TestGc:
    @pytest.fixture
    def leftovers(self, flow: Flow) -> Flow:
        """One attempt that was never decided, two days old; another of a moment ago."""
        flow.decide(1)
        flow.settle(1)
        for seconds in (172_800, 0):
            writer = flow.store.writer(2, author=flow.author)
            writer.add("0", 0, b"never decided")
            writer.write()
            for path in (flow.root / "checkpoints" / str(writer.id)).rglob("*"):
                age(path, seconds)
        return flow

    def test_tells_what_would_go_and_how_much_is_too_young(self, leftovers: Flow, ask: Ask) -> None:
        before = files(leftovers.root)

        result = ask("gc", "--store", leftovers.root)

        assert result.exit_code == 0
        assert result.stdout.count("its attempt was never decided") == 2
        assert result.stdout.splitlines()[-1] == (
            "would delete 2 objects; 2 more are younger than 86400 s and stay"
        )
        assert files(leftovers.root) == before

    def test_with_yes_old_leftovers_go_and_everything_else_stays(
        self, leftovers: Flow, ask: Ask, document: Document
    ) -> None:
        told = document("gc", "--store", leftovers.root)
        before = files(leftovers.root)

        done = document("gc", "--store", leftovers.root, "--yes")

        assert done["deleted"] == 2
        assert done["objects"] == told["objects"]
        assert before - files(leftovers.root) == {one["key"] for one in told["objects"]}
        assert ask("gc", "--store", leftovers.root).stdout.startswith("would delete 0 objects; 2 more")

    def test_at_any_age_the_store_is_clean_afterwards(
        self, leftovers: Flow, ask: Ask, document: Document
    ) -> None:
        ask("gc", "--min-age", "0s", "--store", leftovers.root, "--yes")

        assert document("verify", "--store", leftovers.root, "--read-data")["warnings"] == []

    def test_records_that_a_trimming_left_lying_go_too(
        self, flow: Flow, ask: Ask, document: Document
    ) -> None:
        for epoch in range(1, 40):
            flow.decide(epoch)
            flow.settle(epoch)
        record = (flow.root / "ledger" / "000000000004.json").read_bytes()
        ask("prune", "--keep-last", 2, "--store", flow.root, "--yes")
        (flow.root / "ledger" / "000000000004.json").write_bytes(record)

        told = document("gc", "--store", flow.root)
        done = document("gc", "--store", flow.root, "--yes")

        assert [one["key"] for one in told["objects"]] == ["ledger/000000000004.json"]
        assert "trimmed" in told["objects"][0]["reason"]
        assert done["deleted"] == 1
        assert document("gc", "--store", flow.root)["objects"] == []


class TestTagAndHold:
    def test_a_tag_is_listed_until_it_is_taken_off(self, history: Flow, ask: Ask, document: Document) -> None:
        told = document("tag", "epoch:2", "release-1", "--store", history.root)

        assert told == {
            "checkpoint_id": str(history.ids[1]),
            "name": "release-1",
            "protects": False,
            "until_ms": None,
            "released": False,
            "record": history.store.ledger.read().head,
        }
        assert document("show", "epoch:2", "--store", history.root)["tags"] == ["release-1"]
        assert ask("tag", "epoch:2", "release-1", "--remove", "--store", history.root).exit_code == 0
        assert document("show", "epoch:2", "--store", history.root)["tags"] == []

    def test_a_hold_keeps_until_its_time_or_its_release(
        self, history: Flow, ask: Ask, document: Document
    ) -> None:
        def kept() -> set[int]:
            told = document("prune", "--keep-last", 1, "--store", history.root)
            return {one["epoch"] for one in told["kept"]}

        ask("hold", "epoch:1", "--store", history.root)
        ask("hold", "epoch:2", "audit", "--for", "30 days", "--store", history.root)
        ask("hold", "epoch:3", "short", "--for", "1 ms", "--store", history.root)
        held = kept()
        ask("hold", "epoch:1", "--release", "--store", history.root)

        assert held == {1, 2, 5}
        assert kept() == {2, 5}

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (["tag", "latest", "x", "--remove"], 10, "has no tag 'x'"),
            (["hold", "latest", "x", "--release"], 10, "has no hold 'x'"),
            (["hold", "latest", "t"], 2, "'t' is a tag of"),
            (["hold", "latest", "t", "--release"], 10, "has no hold 't'"),
            (["hold", "latest", "x", "--for", "1 day", "--release"], 2, "one of them"),
            (["tag", "latest", ""], 2, "1 to 200 characters"),
            (["tag", "latest", "a\nb"], 2, "1 to 200 characters"),
            (["tag", "epoch:9", "x"], 10, "no checkpoint holds epoch 9"),
        ],
    )
    def test_what_makes_no_sense_is_refused_and_writes_nothing(
        self, history: Flow, ask: Ask, arguments: list[str], code: int, message: str
    ) -> None:
        ask("tag", "latest", "t", "--store", history.root)
        head = history.store.ledger.read().head

        result = ask(*arguments, "--store", history.root)

        assert result.exit_code == code, result.stderr
        assert message in result.stderr
        assert history.store.ledger.read().head == head

    def test_what_is_pruned_cannot_be_held(self, history: Flow, ask: Ask) -> None:
        ask("prune", "--keep-last", 1, "--store", history.root, "--yes")

        result = ask("hold", history.ids[0], "--store", history.root)

        assert result.exit_code == 11
        assert "is pruned" in result.stderr
