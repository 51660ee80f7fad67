"""Blobs in S3, Google Cloud Storage and Azure, through obstore. The only module that imports it.

Each call is one attempt: obstore's own retries are off, since after a repeated request the answer "taken"
no longer says by whom. Retrying is the business of ``RetryingBlobs``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from heapq import heappop, heappush, heappushpop
from typing import Any
from urllib.parse import urlsplit

from holdfast.blobs.base import (
    BlobInfo,
    BlobStore,
    Data,
    RefusedError,
    check_key,
    check_prefix,
    check_range,
    chunks,
)
from holdfast.blobs.object_errors import Answer, create_error, read_error, write_error
from holdfast.blobs.settling import Settled, settle
from holdfast.errors import (
    HoldfastError,
    InvalidInputError,
    KeyExistsError,
    KeyNotFoundError,
    MissingExtraError,
    OutcomeUnknownError,
    StoreUnavailableError,
)

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")

_CLIENT_DEFAULTS = {"timeout": "60s", "connect_timeout": "5s"}
_PAGE = 1000
_WINDOW = 10_000
_LARGEST_REQUEST = 64 * 1024 * 1024

# Whether this process has made a request, and whether it is the forked child of one that had.
_used = False
_forked_after_use = False


class ObjectBlobs(BlobStore):
    """All of one bucket: ``ObjectBlobs("s3://bucket", aws_region="eu-central-1")``.

    ``options`` are obstore's settings of the store, by their names (``endpoint``, ``aws_access_key_id``, …),
    with ``client_options`` and ``credential_provider``. What is left out comes from the environment.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._url = _bucket_url(url)
        self._options = options
        self._client = _obstore()
        self._store = _opened(self._url, dict(options))
        self._bucket_seen = False

    @property
    def url(self) -> str:
        return self._url

    def get(self, key: str) -> bytes:
        with self._reading("reading", key):
            result = self._client.get(self._store, key)
            data = bytes(result.bytes())
            self._check_answer(result.meta, len(data), key)
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(key, start, length)
        if length == 0:
            # No server understands a range of nothing.
            if self.head(key) is None:
                raise KeyNotFoundError(key)
            return b""
        with self._reading("reading", key):
            try:
                data = bytes(self._client.get_range(self._store, key, start=start, length=length))
            except self._client.exceptions.BaseError as error:
                if Answer.of(error).status != 416:
                    raise
                # The object ends before the range begins: it is there, and has nothing to give.
                return b""
        if len(data) > length:
            raise StoreUnavailableError(
                f"{self._what('reading', key)}: {len(data)} bytes instead of {length}"
            )
        return data

    def head(self, key: str) -> BlobInfo | None:
        try:
            with self._reading("looking at", key):
                return _info(self._client.head(self._store, key))
        except KeyNotFoundError:
            return None

    def create(self, key: str, data: Data) -> None:
        """One conditional request. An unknown outcome is settled by reading back, where that is possible."""
        _check_object_key(key)
        pieces = chunks(data)
        try:
            with self._requesting(lambda answer: create_error(answer, self._what("creating", key), key)):
                self._client.put(self._store, key, pieces, mode="create", use_multipart=False)
            self._bucket_seen = True
        except OutcomeUnknownError:
            outcome = settle(self, key, pieces)
            if outcome is Settled.OURS:
                return
            if outcome is Settled.TAKEN:
                raise KeyExistsError(key) from None
            raise

    def put(self, key: str, data: Data) -> None:
        _check_object_key(key)
        pieces = chunks(data)
        # One request while it is small; the parts of a large object show only when all are there.
        large = sum(map(len, pieces)) > _LARGEST_REQUEST
        with self._requesting(lambda answer: write_error(answer, self._what("writing", key))):
            self._client.put(self._store, key, pieces, use_multipart=large)
        self._bucket_seen = True

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobInfo]:
        check_prefix(prefix)
        return self._listed(prefix, start_after or "")

    def delete(self, key: str) -> None:
        _check_object_key(key)
        try:
            with self._requesting(lambda answer: write_error(answer, self._what("deleting", key))):
                self._client.delete(self._store, key)
        except _MissingError:
            self._check_bucket()

    def __repr__(self) -> str:
        # Never the options: they may hold secrets.
        return f"ObjectBlobs({self._url!r})"

    def __reduce__(self) -> tuple[Callable[..., ObjectBlobs], tuple[str, dict[str, Any]]]:
        secret = sorted(name for name in self._options if not _is_harmless(name))
        if secret:
            raise InvalidInputError(
                f"{self!r} does not travel to another process with {', '.join(secret)}"
            ).with_hint("leave them out there: credentials are read from the environment of each process")
        return _reopened, (self._url, self._options)

    def _listed(self, prefix: str, start_after: str) -> Iterator[BlobInfo]:
        # The service knows prefixes of whole path segments only; the rest is picked here.
        directory = prefix[: prefix.rfind("/") + 1]
        offset = _safe_offset(directory, max(start_after, prefix[:-1]) if prefix else start_after)
        wanted = (
            info
            for page in self._pages(directory, offset)
            for info in map(_info, page)
            if info.key > start_after and info.key.startswith(prefix)
        )
        last = ""
        for info in _reordered(wanted):
            if info.key <= last:
                raise InvalidInputError(
                    f"{self!r} lists {info.key!r} after {last!r}: far out of order"
                ).with_hint("directory buckets and hierarchical namespaces can't hold a store")
            last = info.key
            yield info

    def _pages(self, directory: str, offset: str) -> Iterator[Any]:
        what = self._what("listing", directory)
        with self._requesting(lambda answer: read_error(answer, what)):
            listing = iter(
                self._client.list(self._store, directory or None, offset=offset or None, chunk_size=_PAGE)
            )
        while True:
            with self._requesting(lambda answer: read_error(answer, what)):
                page = next(listing, None)
            if page is None:
                return
            self._bucket_seen = True
            yield page

    def _check_answer(self, meta: Mapping[str, Any], size: int, key: str) -> None:
        # Every one of these services sends an ETag; a proxy's login page does not.
        if meta["e_tag"] is None or meta["size"] != size:
            raise StoreUnavailableError(
                f"{self._what('reading', key)}: {size} bytes that are not an object store's answer"
            ).with_hint("is there a proxy in between, or is the endpoint another service?")

    def _check_bucket(self) -> None:
        """Something is missing. Make sure that it is not the bucket."""
        if not self._bucket_seen:
            next(self._pages("", ""), None)
            self._bucket_seen = True

    @contextmanager
    def _reading(self, doing: str, key: str) -> Iterator[None]:
        _check_object_key(key)
        try:
            with self._requesting(lambda answer: read_error(answer, self._what(doing, key))):
                yield
            self._bucket_seen = True
        except _MissingError:
            self._check_bucket()
            raise KeyNotFoundError(key) from None

    @contextmanager
    def _requesting(self, translated: Callable[[Answer], HoldfastError]) -> Iterator[None]:
        _check_fork()
        try:
            yield
        except (self._client.exceptions.BaseError, OSError) as error:
            # Without the cause: its text may hold a signed URL.
            answer = Answer.of(error)
            refused = translated(answer)
            if answer.status == 404 and not answer.no_bucket:
                raise _MissingError(*refused.args).with_hint(refused.hint or "") from None
            raise refused from None

    def _what(self, doing: str, key: str) -> str:
        return f"{doing} {key!r} in {self._url}"


def _check_object_key(key: str) -> None:
    check_key(key)
    # Some services take it for a slash and would answer for another key.
    if "\\" in key:
        raise InvalidInputError(f"key {key!r} holds a backslash, which not every object store keeps as it is")


class _MissingError(RefusedError):
    """404 without a word about the bucket: most likely it is about the key."""


def _bucket_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise InvalidInputError("an object store's URL looks like s3://bucket, gs://bucket or az://container")
    # abfss://container@account… is the one form where something before the @ is no secret.
    if "@" in parts.netloc and (parts.scheme not in ("abfs", "abfss") or parts.password is not None):
        raise InvalidInputError(f"a {parts.scheme}:// URL must not hold credentials").with_hint(
            "put them into the environment, or into options"
        )
    if parts.query or parts.fragment:
        raise InvalidInputError(f"a {parts.scheme}:// URL holds a bucket and a path, no '?' and no '#'")
    if parts.path.strip("/"):
        raise InvalidInputError(f"{url!r} names a part of the bucket").with_hint(
            "open_blobs makes it the prefix"
        )
    return f"{parts.scheme}://{parts.netloc}"


def _opened(url: str, options: dict[str, Any]) -> Any:
    if "retry_config" in options:
        raise InvalidInputError(
            "retry_config: a repeated create can't tell whose object it meets; wrap the store in"
            " RetryingBlobs instead"
        )
    client = {**_CLIENT_DEFAULTS, **options.pop("client_options", {})}
    provider = options.pop("credential_provider", None)
    arguments: dict[str, Any] = {
        "config": options,
        "client_options": client,
        "retry_config": {"max_retries": 0},
    }
    if provider is not None:
        arguments["credential_provider"] = provider
    client_library = _obstore()
    try:
        return client_library.store.from_url(url, **arguments)
    except (client_library.exceptions.UnknownConfigurationKeyError, KeyError):
        raise InvalidInputError(
            f"{url} does not know one of the options {', '.join(sorted(options))}"
        ) from None
    except (client_library.exceptions.BaseError, ValueError, TypeError):
        # Without the cause: it may repeat a value.
        given = ", ".join(sorted([*options, *client]))
        raise InvalidInputError(f"{url} can't be opened with the options {given}").with_hint(
            "are all that are needed there, and are their values of the right form?"
        ) from None


@cache
def _obstore() -> Any:
    """The client, loaded by the first store and not by whoever merely imports this module."""
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise MissingExtraError("cloud", "an object store") from error
    return obstore


def _reopened(url: str, options: dict[str, Any]) -> ObjectBlobs:
    return ObjectBlobs(url, **options)


def _is_harmless(option: str) -> bool:
    """Whether an option's value may be written down. What is not known to be harmless is secret."""
    return option.removeprefix("aws_").removeprefix("azure_storage_").removeprefix("google_") in {
        "region",
        "endpoint",
        "endpoint_url",
        "base_url",
        "account_name",
        "use_emulator",
        "virtual_hosted_style_request",
        "allow_http",
        "s3_express",
    }


def _reordered(listed: Iterator[BlobInfo]) -> Iterator[BlobInfo]:
    """``listed`` in ascending order of keys, as far as a window of them can bring it there.

    Not every service sorts by code points: some walk directories ("a/b" before "a-b"), some compare UTF-16.
    Keys like ours differ in that only where names continue each other, which lie close together.
    """
    window: list[tuple[str, BlobInfo]] = []
    for info in listed:
        if len(window) < _WINDOW:
            heappush(window, (info.key, info))
        else:
            yield heappushpop(window, (info.key, info))[1]
    while window:
        yield heappop(window)[1]


def _safe_offset(directory: str, offset: str) -> str:
    """Where a service may start, whichever order it has, without leaving out a key after ``offset``.

    Up to the first character that the orders disagree about, and one less, for who is told to start after a
    directory may skip what is in it. What comes in excess is dropped by the caller.
    """
    if not offset.startswith(directory):
        return "" if offset < directory else offset
    agreed = re.split("[^/-\ud7ff]", offset[len(directory) :], maxsplit=1)[0].rstrip("/")
    rest = agreed[:-1]
    while rest.endswith("/"):
        rest = rest[:-2]
    return directory + rest if rest else ""


def _info(meta: Mapping[str, Any]) -> BlobInfo:
    return BlobInfo(
        key=meta["path"],
        size=meta["size"],
        modified_ms=int(meta["last_modified"].timestamp() * 1000),
        # Azure quotes it in one answer and not in the other.
        etag=meta["e_tag"].strip('"') if meta["e_tag"] else None,
    )


def _check_fork() -> None:
    global _used
    if _forked_after_use:
        raise InvalidInputError(
            "this process was forked from one that had used an object store; going on would hang both"
        ).with_hint('start it with multiprocessing.get_context("spawn"), or fork before the first request')
    _used = True


def _after_fork_in_child() -> None:
    global _forked_after_use
    _forked_after_use = _forked_after_use or _used


os.register_at_fork(after_in_child=_after_fork_in_child)
