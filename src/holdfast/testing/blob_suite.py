"""What every store must do, as tests. A backend's own file is ten lines:

    class TestFileBlobs(BlobSuite):
        @pytest.fixture
        def blobs(self, tmp_path: Path) -> FileBlobs:
            return FileBlobs(tmp_path)

``blobs`` must be empty for each test. Override ``RIVALS`` and ``ROUNDS`` for a store that is slow in a race.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from holdfast.blobs.base import MAX_KEY_BYTES, MAX_SEGMENT_BYTES, BlobStore
from holdfast.errors import HoldfastError, InvalidInputError, KeyExistsError, KeyNotFoundError

BAD_KEYS = {
    "empty": "",
    "absolute": "/a",
    "ends with a slash": "a/",
    "empty part": "a//b",
    "parent": "a/../b",
    "only parent": "..",
    "here": "./a",
    "here at the end": "a/.",
    "NUL": "a\0b",
    "line feed": "new\nline",
    "delete": "a\x7fb",
    "not a character": "a\uffffb",
    "lone surrogate": "a\ud800b",
    "too long": "/".join(["k" * 100] * 11),
    "part too long": "k" * (MAX_SEGMENT_BYTES + 1),
    "part too long in UTF-8": "ü" * (MAX_SEGMENT_BYTES // 2 + 1),
    "our temporary name": "a/.holdfast-tmp-1-0123456789abcdef",
}

GOOD_KEYS = [
    "a",
    "_latest",
    "checkpoints/0195c0de-7000-7abc-8def-0123456789ab/operators/a%2Fb/partition-0.snap",
    "with space",
    "ümlaut/日本/🐚",
    "%2F%25",
    "100%",
    "a+b&c=d?e#f",
    "~tilde|pipe{brace}[bracket]^`\"<>*'",
    "...",
    ".hidden",
    "a.",
    "-",
    "k" * MAX_SEGMENT_BYTES,
    # As long as it may be where the URL of the store brings a prefix of its own.
    "/".join(["k" * 127] * (MAX_KEY_BYTES // 128 - 1)),
]

# Ascending by code point, which is the order of the UTF-8 bytes. A walk of directories, one name after the
# other, puts "a/b" before "a-b"; so does everyone who forgets that "/" sorts after "-" and ".".
ORDERED_KEYS = [
    "A", "a", "a b", "a-b", "a-b/c", "a.b", "a/b", "a/b-c", "a/b/c", "a/b/c/d", "a/b0", "a0", "aa", "b", "~",
    "é", "\ufffd", "\U0001f41a",
]  # fmt: skip


class BlobSuite:
    """The contract of ``BlobStore``, sentence by sentence."""

    RIVALS: ClassVar[int] = 8
    ROUNDS: ClassVar[int] = 20
    #: How many keys a long listing has: more than services return at once.
    MANY: ClassVar[int] = 1_050
    #: Keys that this backend can hold; a file system can't hold both "a" and "a/b".
    ORDERED: ClassVar[list[str]] = ORDERED_KEYS

    @pytest.fixture
    def blobs(self) -> BlobStore:
        raise NotImplementedError("override this fixture: an empty store of your backend")

    # -- create

    def test_what_was_created_is_read_back(self, blobs: BlobStore) -> None:
        blobs.create("dir/key", b"\x00bytes\xff")

        assert blobs.get("dir/key") == b"\x00bytes\xff"

    def test_a_taken_key_refuses_a_second_create_and_keeps_its_bytes(self, blobs: BlobStore) -> None:
        blobs.create("key", b"first")

        with pytest.raises(KeyExistsError) as caught:
            blobs.create("key", b"second")

        assert caught.value.key == "key"
        assert blobs.get("key") == b"first"

    def test_a_create_with_the_same_bytes_is_refused_all_the_same(self, blobs: BlobStore) -> None:
        blobs.create("key", b"same")

        with pytest.raises(KeyExistsError):
            blobs.create("key", b"same")

    def test_a_key_that_was_put_is_taken(self, blobs: BlobStore) -> None:
        blobs.put("key", b"put")

        with pytest.raises(KeyExistsError):
            blobs.create("key", b"created")

        assert blobs.get("key") == b"put"

    def test_a_deleted_key_is_free_again(self, blobs: BlobStore) -> None:
        blobs.create("key", b"first")
        blobs.delete("key")

        blobs.create("key", b"second")

        assert blobs.get("key") == b"second"

    def test_of_any_number_of_rivals_exactly_one_creates_a_key(self, blobs: BlobStore) -> None:
        for number in range(self.ROUNDS):
            key = f"race/{number}"

            won = [rival for rival, outcome in enumerate(self._race(blobs, key)) if outcome is None]

            assert len(won) == 1, f"round {number}: {won} all believe they won"
            assert blobs.get(key) == _speech(won[0])

    def test_losers_are_told_that_the_key_exists(self, blobs: BlobStore) -> None:
        outcomes = self._race(blobs, "race")

        errors = [outcome for outcome in outcomes if outcome is not None]
        assert len(errors) == self.RIVALS - 1
        assert all(isinstance(error, KeyExistsError) for error in errors), errors

    # -- put

    def test_put_replaces(self, blobs: BlobStore) -> None:
        blobs.put("key", b"a longer first version")
        blobs.put("key", b"second")

        assert blobs.get("key") == b"second"

    def test_readers_see_the_old_or_the_new_bytes_and_never_a_mix(self, blobs: BlobStore) -> None:
        versions = [bytes([number]) * 200_000 for number in range(8)]
        blobs.put("key", versions[0])
        done = threading.Event()

        def read() -> set[bytes]:
            seen = set()
            while not done.is_set():
                seen.add(blobs.get("key"))
            return seen

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            try:
                for version in versions:
                    blobs.put("key", version)
            finally:
                done.set()
            seen = set().union(*(reader.result() for reader in readers))

        assert seen <= set(versions), "a reader saw bytes that nobody wrote"

    # -- data

    def test_empty_data_is_data(self, blobs: BlobStore) -> None:
        blobs.create("empty", b"")

        assert blobs.get("empty") == b""
        info = blobs.head("empty")
        assert info is not None
        assert info.size == 0

    @pytest.mark.parametrize(
        "data",
        [
            pytest.param(bytearray(b"abc"), id="bytearray"),
            pytest.param(memoryview(b"xabcx")[1:4], id="view"),
            pytest.param(memoryview(b"cba")[::-1], id="view with steps"),
            pytest.param(memoryview(b"abc").cast("c"), id="view of characters"),
            pytest.param([b"a", bytearray(b"b"), memoryview(b"c")], id="sequence"),
            pytest.param((b"", b"abc", b""), id="sequence with nothing in it"),
        ],
    )
    def test_anything_bytes_like_can_be_written_and_sequences_of_it(
        self, blobs: BlobStore, data: object
    ) -> None:
        blobs.create("created", data)  # type: ignore[arg-type]
        blobs.put("put", data)  # type: ignore[arg-type]

        assert blobs.get("created") == b"abc"
        assert blobs.get("put") == b"abc"

    @pytest.mark.parametrize("data", ["text", ["text"], 3, None, [3]], ids=repr)
    def test_anything_else_is_refused_and_nothing_is_written(self, blobs: BlobStore, data: object) -> None:
        with pytest.raises(InvalidInputError):
            blobs.create("key", data)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError):
            blobs.put("key", data)  # type: ignore[arg-type]

        assert blobs.head("key") is None

    def test_a_buffer_changed_after_the_write_changes_nothing(self, blobs: BlobStore) -> None:
        buffer = bytearray(b"before")
        blobs.create("key", buffer)

        buffer[:] = b"after!"

        assert blobs.get("key") == b"before"

    def test_a_large_object_comes_back_whole(self, blobs: BlobStore) -> None:
        data = bytes(range(256)) * (20 * 4096)

        blobs.create("large", data)

        assert blobs.get("large") == data
        assert blobs.get_range("large", len(data) - 3, 100) == data[-3:]

    # -- reading

    def test_a_missing_key_cannot_be_got(self, blobs: BlobStore) -> None:
        blobs.create("dir/there", b"")

        for key in ("missing", "dir/missing", "dir", "dir/there/below"):
            with pytest.raises(KeyNotFoundError) as caught:
                blobs.get(key)
            assert caught.value.key == key
            with pytest.raises(KeyNotFoundError):
                blobs.get_range(key, 0, 1)
            assert blobs.head(key) is None

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [
            (0, 10, b"0123456789"),
            (0, 0, b""),
            (3, 4, b"3456"),
            (9, 1, b"9"),
            (8, 100, b"89"),
            (0, 2**62, b"0123456789"),
            (10, 1, b""),
            (10, 0, b""),
            (11, 5, b""),
            (2**40, 2**40, b""),
        ],
    )
    def test_a_range_is_cut_where_the_object_ends(
        self, blobs: BlobStore, start: int, length: int, expected: bytes
    ) -> None:
        blobs.create("key", b"0123456789")

        assert blobs.get_range("key", start, length) == expected

    def test_an_empty_object_has_only_empty_ranges(self, blobs: BlobStore) -> None:
        blobs.create("key", b"")

        assert blobs.get_range("key", 0, 10) == b""

    @pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1), (-5, -5)])
    def test_a_negative_range_is_refused(self, blobs: BlobStore, start: int, length: int) -> None:
        blobs.create("key", b"0123456789")

        with pytest.raises(InvalidInputError):
            blobs.get_range("key", start, length)

    def test_head_tells_size_and_a_plausible_time(self, blobs: BlobStore) -> None:
        blobs.create("dir/key", b"12345")

        info = blobs.head("dir/key")

        assert info is not None
        assert (info.key, info.size) == ("dir/key", 5)
        assert info.modified_ms > 1_500_000_000_000, "milliseconds since 1970, by the store's clock"

    def test_the_etag_changes_with_the_object(self, blobs: BlobStore) -> None:
        blobs.put("key", b"first")
        first = blobs.head("key")

        blobs.put("key", b"other")
        second = blobs.head("key")

        assert first is not None
        assert second is not None
        assert first.etag is None or first.etag != second.etag

    # -- list

    def test_an_empty_store_lists_nothing(self, blobs: BlobStore) -> None:
        assert list(blobs.list("")) == []
        assert list(blobs.list("any/prefix")) == []

    def test_keys_come_in_ascending_order_whatever_order_they_were_written_in(self, blobs: BlobStore) -> None:
        self._fill(blobs)

        assert _keys(blobs, "") == self.ORDERED

    @pytest.mark.parametrize(
        "prefix", ["a", "a/", "a/b", "a/b/", "a-", "a/b/c/d", "a/b/c/d/", "z", "é", "a/b/c/"]
    )
    def test_a_prefix_is_text_and_need_not_end_at_a_slash(self, blobs: BlobStore, prefix: str) -> None:
        self._fill(blobs)

        assert _keys(blobs, prefix) == [key for key in self.ORDERED if key.startswith(prefix)]

    @pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b"])
    def test_listing_goes_on_after_any_text_there_or_not(self, blobs: BlobStore, prefix: str) -> None:
        self._fill(blobs)

        for after in [
            *self.ORDERED,
            "",
            "0",
            "a/",
            "a/b/",
            "a/a",
            "a/zz",
            "a-b/",
            "a/b/c/",
            "zz",
            "\U0010ffff",
        ]:
            expected = [key for key in self.ORDERED if key.startswith(prefix) and key > after]
            assert _keys(blobs, prefix, after) == expected, f"after {after!r}"

    def test_a_listing_tells_what_head_tells(self, blobs: BlobStore) -> None:
        blobs.create("dir/a", b"1")
        blobs.create("dir/b", b"22")

        listed = list(blobs.list("dir/"))

        assert [(info.key, info.size) for info in listed] == [("dir/a", 1), ("dir/b", 2)]
        for info in listed:
            found = blobs.head(info.key)
            assert found is not None
            assert found.modified_ms // 1000 == info.modified_ms // 1000

    def test_a_page_of_a_thousand_is_not_the_end(self, blobs: BlobStore) -> None:
        keys = [f"many/{number:05}" for number in range(self.MANY)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: blobs.put(key, b""), keys))

        assert _keys(blobs, "many/") == keys
        assert _keys(blobs, "many/", "many/01000") == keys[1001:]

    def test_a_listing_streams(self, blobs: BlobStore) -> None:
        for number in range(3):
            blobs.create(f"dir/{number}", b"")

        listing = blobs.list("dir/")

        assert next(listing).key == "dir/0"

    def test_keys_deleted_during_a_listing_do_not_disturb_it(self, blobs: BlobStore) -> None:
        keys = [f"dir/{number}/{number}" for number in range(10)]
        for key in keys:
            blobs.create(key, b"")

        seen = []
        for info in blobs.list("dir/"):
            seen.append(info.key)
            blobs.delete(info.key)

        assert seen == keys
        assert _keys(blobs, "") == []

    @pytest.mark.parametrize("prefix", ["/", "/a", "a//b", "../", "a/../b", "./a", "a\0", "\ud800"])
    def test_a_prefix_that_no_key_can_have_is_refused(self, blobs: BlobStore, prefix: str) -> None:
        with pytest.raises(InvalidInputError):
            blobs.list(prefix)

    # -- delete

    def test_a_deleted_object_is_gone(self, blobs: BlobStore) -> None:
        blobs.create("dir/key", b"")
        blobs.create("dir/other", b"")

        blobs.delete("dir/key")

        assert blobs.head("dir/key") is None
        assert _keys(blobs, "") == ["dir/other"]

    def test_deleting_what_is_missing_is_fine(self, blobs: BlobStore) -> None:
        blobs.create("dir/key", b"")

        blobs.delete("missing")
        blobs.delete("missing/deeper")
        blobs.delete("dir/missing")
        blobs.delete("dir/key")
        blobs.delete("dir/key")

        assert _keys(blobs, "") == []

    def test_deleting_a_prefix_deletes_nothing(self, blobs: BlobStore) -> None:
        blobs.create("dir/key", b"")

        blobs.delete("dir")

        assert blobs.get("dir/key") == b""

    # -- keys

    @pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS.keys())
    def test_a_bad_key_is_refused_by_every_call_before_anything_happens(
        self, blobs: BlobStore, key: str
    ) -> None:
        calls: list[Callable[[], object]] = [
            lambda: blobs.get(key),
            lambda: blobs.get_range(key, 0, 1),
            lambda: blobs.head(key),
            lambda: blobs.create(key, b""),
            lambda: blobs.put(key, b""),
            lambda: blobs.delete(key),
        ]

        for call in calls:
            with pytest.raises(InvalidInputError):
                call()

        assert _keys(blobs, "") == []

    @pytest.mark.parametrize("key", GOOD_KEYS, ids=lambda key: repr(key[:40]))
    def test_a_good_key_comes_back_as_it_went_in(self, blobs: BlobStore, key: str) -> None:
        blobs.create(key, b"data")

        assert _keys(blobs, "") == [key]
        assert blobs.get(key) == b"data"
        found = blobs.head(key)
        assert found is not None
        assert found.key == key
        blobs.delete(key)
        assert _keys(blobs, "") == []

    def test_keys_that_differ_only_by_case_are_two_objects(self, blobs: BlobStore) -> None:
        blobs.create("Key", b"upper")
        blobs.create("key", b"lower")

        assert (blobs.get("Key"), blobs.get("key")) == (b"upper", b"lower")

    def test_keys_that_look_alike_are_two_objects(self, blobs: BlobStore) -> None:
        composed, decomposed = "\u00e9", "e\u0301"
        blobs.create(composed, b"one code point")
        blobs.create(decomposed, b"two")

        assert (blobs.get(composed), blobs.get(decomposed)) == (b"one code point", b"two")

    # -- leftovers

    def test_sweeping_leaves_every_object_alone(self, blobs: BlobStore) -> None:
        self._fill(blobs)

        blobs.sweep_leftovers(min_age_seconds=0)

        assert _keys(blobs, "") == self.ORDERED

    def _fill(self, blobs: BlobStore) -> None:
        # Neither the order of the keys nor its reverse.
        for key in [*self.ORDERED[::2], *self.ORDERED[1::2]]:
            blobs.create(key, key.encode())

    def _race(self, blobs: BlobStore, key: str) -> list[HoldfastError | None]:
        """What each rival got: None for success, else its error."""
        gate = threading.Barrier(self.RIVALS)

        def create(rival: int) -> HoldfastError | None:
            gate.wait()
            try:
                blobs.create(key, _speech(rival))
            except HoldfastError as error:
                return error
            return None

        with ThreadPoolExecutor(self.RIVALS) as pool:
            return list(pool.map(create, range(self.RIVALS)))


def _speech(rival: int) -> bytes:
    return f"rival {rival} was here".encode() * 100


def _keys(blobs: BlobStore, prefix: str, start_after: str | None = None) -> list[str]:
    return [info.key for info in blobs.list(prefix, start_after)]
