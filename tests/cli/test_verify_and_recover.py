"""``verify`` and ``recover --dry-run``: what is wrong, and what a start would do about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

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
