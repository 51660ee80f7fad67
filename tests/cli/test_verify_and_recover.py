"""``verify`` and ``recover --dry-run``: what is wrong, and what a start would do about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import Result

#: What the fixture ``flow`` gives: see conftest.py.
Flow: TypeAlias = Any

Ask: TypeAlias = Callable[..., Result]
Document: TypeAlias = Callable[..., Any]


class TestVerify:
    def test_a_sound_store_is_ok(self, flow: Flow, ask: Ask, document: Document) -> None:
        flow.decide(2, parent=flow.decide(1))

        result = ask("verify", "--store", flow.root, "--read-data")

        assert result.exit_code == 0
        assert result.stdout.startswith("ok: ")
        told = document("verify", "--store", flow.root)
        assert list(told) == ["ok", "examined", "problems", "warnings"]
        assert (told["ok"], told["problems"], told["warnings"]) == (True, [], [])
        assert told["examined"] >= 6  # three records, two manifests, two packs; fewer would be too few

    def test_a_flipped_bit_in_state_takes_reading_the_data_and_is_named(
        self, flow: Flow, ask: Ask, document: Document
    ) -> None:
        key = flow.damage("batch-*.lz4", flow.decide(1))

        by_size = ask("verify", "--store", flow.root)
        result = ask("verify", "--store", flow.root, "--read-data")
        told = document("verify", "--store", flow.root, "--read-data")

        assert by_size.exit_code == 0
        assert result.exit_code == 20
        assert key in result.stdout
        assert told["ok"] is False
        assert [list(problem) for problem in told["problems"]] == [["code", "message", "key", "hint"]]
        assert told["problems"][0]["key"] == key

    def test_a_missing_object_is_found_by_its_name(self, flow: Flow, ask: Ask) -> None:
        (pack,) = (flow.root / "checkpoints" / str(flow.decide(1))).glob("batch-*.lz4")
        pack.unlink()

        assert ask("verify", "--store", flow.root).exit_code == 20

    def test_one_checkpoint_is_read_to_the_last_byte(self, flow: Flow, ask: Ask, document: Document) -> None:
        flow.decide(1)
        key = flow.damage("batch-*.lz4", flow.decide(2))

        sound = ask("verify", "epoch:1", "--store", flow.root)
        broken = ask("verify", "epoch:1", "epoch:2", "--store", flow.root)

        assert sound.exit_code == 0
        assert broken.exit_code == 20
        assert key.split("/")[-1] in broken.stdout
        assert document("verify", "epoch:2", "--store", flow.root)["examined"] == 1

    def test_a_checkpoint_whose_parent_is_broken_is_broken(self, flow: Flow, ask: Ask) -> None:
        first = flow.decide(1)
        flow.decide(2, parent=first)
        flow.damage("batch-*.lz4", first)

        assert ask("verify", "latest", "--store", flow.root).exit_code == 20


class TestVerifyASubset:
    @pytest.fixture(autouse=True)
    def state(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        return tmp_path / "state"

    def test_as_many_runs_as_there_are_parts_read_every_object_once(
        self, flow: Flow, document: Document
    ) -> None:
        damaged = {flow.damage("batch-*.lz4", flow.decide(epoch)) for epoch in range(1, 6)}

        runs = [document("verify", "--read-data-subset", "25%", "--store", flow.root) for _ in range(4)]

        found = [problem["key"] for run in runs for problem in run["problems"]]
        assert sorted(found) == sorted(damaged)
        assert [(run["part"], run["parts"]) for run in runs] == [(1, 4), (2, 4), (3, 4), (4, 4)]
        assert document("verify", "--read-data-subset", "25%", "--store", flow.root)["part"] == 1

    def test_an_object_stays_in_its_part_when_others_come(self, flow: Flow, document: Document) -> None:
        key = flow.damage("batch-*.lz4", flow.decide(1))

        def parts_with_it() -> list[int]:
            told = [
                document("verify", "--read-data-subset", f"{n}/4", "--store", flow.root) for n in range(1, 5)
            ]
            return [one["part"] for one in told if key in [problem["key"] for problem in one["problems"]]]

        before = parts_with_it()
        flow.decide(2)

        assert len(before) == 1
        assert parts_with_it() == before

    def test_a_part_by_its_number_is_told_and_keeps_no_count(self, flow: Flow, ask: Ask, state: Path) -> None:
        flow.decide(1)

        result = ask("verify", "--read-data-subset", "3/20", "--store", flow.root)

        assert result.exit_code == 0
        assert "part 3 of 20 read to the last byte" in result.stdout
        assert not state.exists()

    def test_two_stores_and_two_shares_count_each_for_themselves(
        self, flow_at: Callable[..., Flow], tmp_path: Path, document: Document
    ) -> None:
        for name in ("one", "other"):
            flow_at(tmp_path / name).decide(1)

        parts = [
            document("verify", "--read-data-subset", share, "--store", tmp_path / name)["part"]
            for name, share in [("one", "5%"), ("one", "5%"), ("other", "5%"), ("one", "50%"), ("one", "5%")]
        ]

        assert parts == [1, 2, 1, 1, 3]

    def test_a_run_that_fails_reads_its_part_again(self, flow: Flow, ask: Ask, document: Document) -> None:
        flow.decide(1)
        document("verify", "--read-data-subset", "5%", "--store", flow.root)
        (flow.root / "round").symlink_to(flow.root / "round")

        failed = ask("verify", "--read-data-subset", "5%", "--store", flow.root)
        (flow.root / "round").unlink()

        assert failed.exit_code == 1
        assert document("verify", "--read-data-subset", "5%", "--store", flow.root)["part"] == 2

    def test_where_no_count_can_be_kept_the_part_has_to_be_named(
        self, flow: Flow, ask: Ask, state: Path
    ) -> None:
        flow.decide(1)
        state.write_text("a file where the directory should be")

        result = ask("verify", "--read-data-subset", "5%", "--store", flow.root)

        assert result.exit_code == 2
        assert "--read-data-subset 1/20" in result.stderr

    @pytest.mark.parametrize("share", ["0%", "101%", "5", "0/20", "21/20", "x%", "-5%"])
    def test_a_share_that_is_none_is_a_wrong_call(self, flow: Flow, ask: Ask, share: str) -> None:
        result = ask("verify", f"--read-data-subset={share}", "--store", flow.root)

        assert result.exit_code == 2
        assert '"5%", or a part such as "3/20"' in result.stderr

    def test_it_is_no_company_for_all_or_for_one(self, flow: Flow, ask: Ask) -> None:
        flow.decide(1)

        for more in ("--read-data", "latest"):
            assert ask("verify", more, "--read-data-subset", "5%", "--store", flow.root).exit_code == 2


class TestRecover:
    def test_resumes_from_the_newest(self, flow: Flow, ask: Ask, document: Document) -> None:
        id = flow.decide(1)

        result = ask("recover", "--dry-run", "--store", flow.root)

        assert result.exit_code == 0
        assert f"chosen   {id}" in result.stdout
        assert document("recover", "--dry-run", "--store", flow.root)["verdict"] == "resume"

    def test_steps_back_and_replays_with_code_21(self, flow: Flow, ask: Ask, document: Document) -> None:
        first = flow.decide(1)
        second = flow.decide(2)
        flow.damage("manifest.json", second)

        result = ask("recover", "--dry-run", "--store", flow.root)
        told = document("recover", "--dry-run", "--store", flow.root)

        assert result.exit_code == 21
        assert f"skipped  {second}: " in result.stdout
        assert "replay   epoch 2, sinks closed" in result.stdout
        assert (told["verdict"], told["chosen"], told["examined"]) == ("replay", str(first), 2)
        assert [skipped["id"] for skipped in told["skipped"]] == [str(second)]
        assert [one["epoch"] for one in told["replay"]] == [2]

    def test_is_stuck_with_code_20_and_a_command_where_only_a_person_can_decide(
        self, flow: Flow, ask: Ask, document: Document
    ) -> None:
        flow.decide(1)
        flow.decide(2)
        flow.flip("ledger/000000000003.json")

        result = ask("recover", "--dry-run", "--store", flow.root)

        assert result.exit_code == 20
        assert result.stdout.startswith("chosen")
        assert "hint: holdfast restore " in result.stderr
        assert document("recover", "--dry-run", "--store", flow.root)["verdict"] == "stuck"

    def test_what_it_tells_to_type_when_stuck_works(
        self, query: Any, tmp_path: Path, ask: Ask, document: Document
    ) -> None:
        store = tmp_path / "captured"
        ask("capture", query.root, "--store", store, "--batch", "0")
        ask("capture", query.root, "--store", store)
        record = store / "ledger" / "000000000002.json"
        record.write_bytes(record.read_bytes().replace(b'"epoch":2', b'"epoch":3'))

        told = document("recover", "--dry-run", "--store", store)
        typed = told["command"].replace("DIR", str(tmp_path / "again")).split()[1:]
        done = ask(*typed, "--store", store)

        assert told["verdict"] == "stuck"
        assert done.exit_code == 0, done.stderr
        assert "goes on with batch 1" in done.stdout

    def test_without_any_sound_checkpoint_it_says_what_else_there_is_to_do(
        self, flow: Flow, ask: Ask, document: Document
    ) -> None:
        flow.damage("manifest.json", flow.decide(1))
        flow.flip("ledger/000000000002.json")

        told = document("recover", "--dry-run", "--store", flow.root)
        typed = ask(*told["command"].split()[1:], "--store", flow.root)

        assert (told["verdict"], told["chosen"]) == ("stuck", None)
        assert "bring what is damaged back from a copy" in told["advice"]
        assert typed.exit_code == 20
        assert "ledger/000000000002.json" in typed.stdout

    def test_writes_nothing(self, flow: Flow, ask: Ask) -> None:
        flow.damage("manifest.json", flow.decide(1))
        before = {path: path.read_bytes() for path in flow.root.rglob("*") if path.is_file()}

        ask("recover", "--dry-run", "--store", flow.root)

        assert {path: path.read_bytes() for path in flow.root.rglob("*") if path.is_file()} == before
