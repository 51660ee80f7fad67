"""From URLs to stores, and from mistakes in URLs to sentences."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.blobs import BlobStore, FileBlobs, MemoryBlobs, PrefixedBlobs, objects, open_blobs
from holdfast.blobs.base import BlobInfo, check_key, check_prefix
from holdfast.errors import InvalidInputError, MissingExtraError


def root(blobs: BlobStore) -> Path:
    assert isinstance(blobs, FileBlobs)
    return blobs.root


def test_paths_and_file_urls_lead_to_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "my store"

    for url in (
        store,
        str(store),
        "my store",
        "./my store",
        f"file://{tmp_path}/my%20store",
        f"file:{store}",
    ):
        assert root(open_blobs(url)) == store
    assert root(open_blobs(f"file://localhost{tmp_path}/x")) == tmp_path / "x"
    assert root(open_blobs(f"FILE://{tmp_path}/x")) == tmp_path / "x"


def test_a_path_is_not_decoded_and_may_hold_a_colon() -> None:
    assert root(open_blobs("/a%20b")) == Path("/a%20b")
    assert root(open_blobs("/a:b")) == Path("/a:b")


def test_opening_touches_nothing(tmp_path: Path) -> None:
    open_blobs(tmp_path / "new")

    assert list(tmp_path.iterdir()) == []


def test_a_memory_store_is_shared_by_its_name() -> None:
    open_blobs("memory://test-sharing").create("key", b"data")

    assert open_blobs("memory://test-sharing").get("key") == b"data"
    assert open_blobs("memory://test-sharing-not").head("key") is None


def test_the_path_of_a_memory_url_is_a_prefix_for_everyone() -> None:
    # Some users of one bucket applied the URL's path and some did not: two clusters shared markers.
    whole = open_blobs("memory://test-prefix")
    part = open_blobs("memory://test-prefix/team/orders")

    part.create("key", b"data")

    assert isinstance(whole, MemoryBlobs)
    assert [info.key for info in whole.list("")] == ["team/orders/key"]
    assert open_blobs("memory://test-prefix/team/orders/").get("key") == b"data"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "empty"),
        ("file://", "empty"),
        ("a\0b", "NUL"),
        ("file:///a%00b", "NUL"),
        ("file://host/path", "host"),
        ("file:///path?x=1", r"\?"),
        ("file:///path#x", "#"),
        ("memory://", "no name"),
        ("memory:///path", "no name"),
        ("memory://name/../other", r"\.\."),
        ("ftp://host/path", "no store speaks ftp"),
        ("http://host/path", "no store speaks http"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_with_a_reason(url: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        open_blobs(url)


@pytest.mark.parametrize("url", ["/path", "file:///path", "memory://name"])
def test_an_unknown_option_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidInputError, match="'fsnyc'"):
        open_blobs(url, fsnyc=False)


@pytest.mark.parametrize("prefix", ["", "a", "/a/", "a//", "../a/"])
def test_a_prefix_is_a_directory_of_keys(prefix: str) -> None:
    with pytest.raises(InvalidInputError):
        PrefixedBlobs(MemoryBlobs(), prefix)


def test_a_prefixed_store_passes_the_sweeping_on(tmp_path: Path) -> None:
    files = FileBlobs(tmp_path)
    files.create("team/key", b"")
    (tmp_path / "team/.holdfast-tmp-1-0").write_bytes(b"")

    assert PrefixedBlobs(files, "team/").sweep_leftovers(min_age_seconds=0) == 1


def test_keys_have_the_same_limits_on_every_backend() -> None:
    check_key("k" * 255)
    check_key("/".join(["k" * 127] * 8))
    for key in ("k" * 256, "ü" * 128, "/".join(["k" * 127] * 8) + "kk", b"bytes", None, 3):
        with pytest.raises(InvalidInputError):
            check_key(key)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        check_prefix(None)  # type: ignore[arg-type]


def test_a_blob_info_is_a_value() -> None:
    assert BlobInfo("key", 1, 2) == BlobInfo("key", 1, 2, None)
    assert len({BlobInfo("key", 1, 2), BlobInfo("key", 1, 2)}) == 1


@pytest.mark.parametrize("url", ["s3://b/path", "gs://b", "az://c", "abfss://c@a.dfs.core.windows.net/p"])
def test_without_the_extra_an_object_store_names_the_line_to_type(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    objects._obstore.cache_clear()
    try:
        with pytest.raises(MissingExtraError, match="cloud") as caught:
            open_blobs(url)
    finally:
        objects._obstore.cache_clear()

    assert caught.value.hint == "pip install 'holdfast[cloud]'"


def test_object_urls_open_with_retries_and_the_path_as_prefix() -> None:
    opened = open_blobs("s3://bucket/team/orders/", aws_region="eu-central-1")

    assert repr(opened) == "PrefixedBlobs(RetryingBlobs(ObjectBlobs('s3://bucket')), 'team/orders/')"
    assert repr(open_blobs("gs://bucket")) == "RetryingBlobs(ObjectBlobs('gs://bucket'))"
    azure = open_blobs("abfss://data@account.dfs.core.windows.net/team")
    assert "ObjectBlobs('abfss://data@account.dfs.core.windows.net')" in repr(azure)
