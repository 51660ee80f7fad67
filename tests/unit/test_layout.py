"""Names become keys and come back; old forms are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.blobs.base import check_key
from holdfast.errors import InvalidInputError
from holdfast.ids import CheckpointId
from holdfast.layout import (
    CheckpointPaths,
    boundary_key,
    boundary_number,
    decode_name,
    encode_name,
    ledger_key,
    ledger_number,
    log_key,
    packed_path,
    split_packed,
)

TEXT = "0195c0de-7000-7abc-8def-0123456789ab"
ID = CheckpointId.parse(TEXT)
PATHS = CheckpointPaths()


def test_every_key_of_a_checkpoint_has_its_place() -> None:
    assert PATHS.latest_pointer() == "checkpoints/_latest"
    assert PATHS.checkpoint_dir(ID) == f"checkpoints/{TEXT}/"
    assert PATHS.manifest(ID) == f"checkpoints/{TEXT}/manifest.json"
    assert PATHS.snapshot(ID, "agg", 3) == f"checkpoints/{TEXT}/operators/agg/partition-3.snap"
    assert PATHS.delta(ID, "agg", 3) == f"checkpoints/{TEXT}/operators/agg/partition-3.delta"
    assert PATHS.source_offset(ID, "trades") == f"checkpoints/{TEXT}/offsets/trades.json"
    assert PATHS.batch(ID, 41) == f"checkpoints/{TEXT}/batch-000041.lz4"
    assert PATHS.batch(ID, 12_345_678, 2) == f"checkpoints/{TEXT}/batch-12345678-2.lz4"


@pytest.mark.parametrize(
    ("base", "pointer"),
    [("checkpoints/", "checkpoints/_latest"), ("a/b", "a/b/_latest"), ("", "_latest")],
)
def test_the_slash_of_the_base_may_be_left_out(base: str, pointer: str) -> None:
    assert CheckpointPaths(base).latest_pointer() == pointer


def test_a_manifest_is_found_in_the_present_and_in_the_old_form() -> None:
    assert PATHS.manifest_id(PATHS.manifest(ID)) == ID
    assert PATHS.old_manifest(ID) == f"checkpoints/{TEXT}manifest.json"
    assert PATHS.manifest_id(PATHS.old_manifest(ID)) == ID


@pytest.mark.parametrize(
    "key",
    [
        "checkpoints/_latest",
        f"checkpoints/{TEXT}/state.bin",
        f"checkpoints/{TEXT}/manifest.json.bak",
        f"checkpoints/{TEXT}/operators/manifest.json",
        f"checkpoints/x{TEXT}/manifest.json",
        f"checkpoints/{TEXT.upper()}/manifest.json",
        f"elsewhere/{TEXT}/manifest.json",
        f"{TEXT}/manifest.json",
    ],
)
def test_anything_else_is_no_manifest(key: str) -> None:
    assert PATHS.manifest_id(key) is None


def test_an_artifact_path_is_relative_or_a_full_key() -> None:
    relative = "operators/agg/partition-0.snap"

    assert PATHS.resolve(ID, relative) == PATHS.snapshot(ID, "agg", 0)
    assert PATHS.resolve(ID, PATHS.snapshot(ID, "agg", 0)) == PATHS.snapshot(ID, "agg", 0)
    old_form = f"checkpoints/{TEXT}operators/agg/partition-0.snap"
    assert PATHS.resolve(ID, old_form) == old_form
    assert PATHS.owner(old_form) == ID


def test_a_full_key_is_told_from_a_relative_path_without_a_base_too() -> None:
    paths = CheckpointPaths("")

    assert paths.resolve(ID, "operators/a/partition-0.snap") == f"{TEXT}/operators/a/partition-0.snap"
    assert paths.resolve(ID, f"{TEXT}/state.bin") == f"{TEXT}/state.bin"


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("window-agg", "window-agg"),
        ("0", "0"),
        ("a/b", "a%2Fb"),
        ("100%", "100%25"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("...", "..."),
        ("a\nb\0", "a%0Ab%00"),
        ("\x7f\x85", "%7F%C2%85"),
        ("günther #1", "günther #1"),
    ],
)
def test_a_name_is_encoded_only_where_a_path_could_not_hold_it(name: str, segment: str) -> None:
    assert encode_name(name) == segment
    assert decode_name(segment) == name


@given(st.text(min_size=1, max_size=20))
def test_every_name_is_one_good_segment_and_comes_back(name: str) -> None:
    segment = encode_name(name)

    assert decode_name(segment) == name
    assert "/" not in segment
    check_key(segment)


@given(st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=8))
def test_two_names_never_share_a_segment(one: str, other: str) -> None:
    assert (encode_name(one) == encode_name(other)) == (one == other)


def test_names_that_no_key_can_hold_are_refused() -> None:
    for name in ("", "\ud800"):
        with pytest.raises(InvalidInputError):
            encode_name(name)
    with pytest.raises(InvalidInputError):
        decode_name("%FF")
    with pytest.raises(InvalidInputError):
        PATHS.snapshot(ID, "agg", -1)


def test_a_packed_path_names_the_object_and_the_entry() -> None:
    path = packed_path("batch-000041.lz4", "operators/0/partition-3.delta")

    assert path == "batch-000041.lz4#operators/0/partition-3.delta"
    assert split_packed(path) == ("batch-000041.lz4", "operators/0/partition-3.delta")
    assert split_packed("batch-000041-2.lz4#a#b") == ("batch-000041-2.lz4", "a#b")
    assert split_packed(PATHS.batch(ID, 1) + "#x") == (PATHS.batch(ID, 1), "x")


@pytest.mark.parametrize(
    "path",
    [
        "operators/a#b/partition-0.snap",
        "operators/batch-000001.lz4#b/partition-0.snap",
        "batch-000041.lz4",
        "batch-41.lz4#too-short",
        "state.bin",
    ],
)
def test_a_name_with_a_hash_sign_does_not_make_a_path_packed(path: str) -> None:
    assert split_packed(path) == (path, None)


def test_ledger_records_and_boundaries_are_told_apart() -> None:
    assert ledger_key(7) == "ledger/000000000007.json"
    assert ledger_number(ledger_key(7)) == 7
    assert boundary_key(7) == "ledger/boundary-000000000007.json"
    assert boundary_number(boundary_key(7)) == 7
    assert ledger_number(boundary_key(7)) is None
    assert boundary_number(ledger_key(7)) is None
    assert ledger_number("ledger/7.json") is None
    assert ledger_number("ledger/000000000007.json.bak") is None
    assert log_key(7, ID, "ab" * 32) == f"logs/000000000007-{TEXT}-{'ab' * 32}"
    for number in (0, -1, 10**12):
        with pytest.raises(InvalidInputError):
            ledger_key(number)


def test_ledger_keys_sort_as_their_numbers_do() -> None:
    numbers = [1, 2, 9, 10, 99, 100, 10**11]

    assert sorted(map(ledger_key, reversed(numbers))) == [ledger_key(number) for number in numbers]
