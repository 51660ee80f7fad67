"""Google Cloud Storage in memory: as much of its XML API as a store needs. There is no real one to be had.

Objects with generations, conditional writes (``x-goog-if-generation-match``), ranges, deletes, listings in
pages. Keys are ordered by their UTF-8 bytes, as there.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 1000


@dataclass(frozen=True)
class Object:
    data: bytes
    generation: int
    modified: float

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}-{self.generation}"'


class FakeGcs(ThreadingHTTPServer):
    """One bucket, ``bucket``. ``objects`` may be looked at and changed by a test."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, Object] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.generation = 1000

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def store(self, key: str, data: bytes) -> Object:
        self.generation += 1
        self.objects[key] = Object(data, self.generation, time.time())
        return self.objects[key]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: FakeGcs

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if bucket != "bucket":
            return self._error(404, "NoSuchBucket")
        with self.server.lock:
            return self._dispatch(key, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _dispatch(self, key: str, query: dict[str, str], body: bytes) -> None:
        if self.command == "GET" and not key:
            return self._list(query)
        if self.command == "PUT" and "partNumber" in query:
            self.server.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return self._answer(200, [("ETag", f'"{hashlib.md5(body).hexdigest()}"')])
        if self.command == "POST" and "uploads" in query:
            return self._begin_upload(key)
        if self.command == "POST" and "uploadId" in query:
            return self._finish_upload(key, query["uploadId"])
        if self.command == "PUT":
            return self._put(key, body)
        if self.command == "DELETE" and "uploadId" in query:
            self.server.uploads.pop(query["uploadId"], None)
            return self._answer(204)
        if self.command == "DELETE":
            gone = self.server.objects.pop(key, None)
            return self._answer(204) if gone else self._error(404, "NoSuchKey")
        if self.command in ("GET", "HEAD"):
            return self._read(key)
        return self._error(501, "NotImplemented")

    def _condition_holds(self, key: str) -> bool:
        wanted = self.headers.get("x-goog-if-generation-match")
        found = self.server.objects.get(key)
        return wanted is None or int(wanted) == (found.generation if found else 0)

    def _put(self, key: str, body: bytes) -> None:
        if not self._condition_holds(key):
            return self._error(412, "PreconditionFailed")
        stored = self.server.store(key, body)
        return self._answer(200, [("ETag", stored.etag), ("x-goog-generation", str(stored.generation))])

    def _begin_upload(self, key: str) -> None:
        self.server.generation += 1
        upload = str(self.server.generation)
        self.server.uploads[upload] = {}
        names = f"<Bucket>bucket</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
        return self._answer(
            200, body=f"<InitiateMultipartUploadResult>{names}</InitiateMultipartUploadResult>"
        )

    def _finish_upload(self, key: str, upload: str) -> None:
        parts = self.server.uploads.pop(upload)
        stored = self.server.store(key, b"".join(parts[number] for number in sorted(parts)))
        names = f"<Key>{escape(key)}</Key><ETag>{escape(stored.etag)}</ETag>"
        return self._answer(
            200, body=f"<CompleteMultipartUploadResult>{names}</CompleteMultipartUploadResult>"
        )

    def _read(self, key: str) -> None:
        found = self.server.objects.get(key)
        if found is None:
            return self._error(404, "NoSuchKey")
        headers = [
            ("ETag", found.etag),
            ("x-goog-generation", str(found.generation)),
            ("Last-Modified", formatdate(found.modified, usegmt=True)),
        ]
        size = len(found.data)
        asked = re.fullmatch(r"bytes=([0-9]+)-([0-9]*)", self.headers.get("range") or "")
        if asked is None:
            return self._answer(200, headers, found.data)
        first = int(asked[1])
        last = min(int(asked[2] or size - 1), size - 1)
        if first >= size:
            return self._error(416, "InvalidRange")
        headers.append(("Content-Range", f"bytes {first}-{last}/{size}"))
        return self._answer(206, headers, found.data[first : last + 1])

    def _list(self, query: dict[str, str]) -> None:
        prefix = query.get("prefix", "")
        # Both markers are exclusive here: the token is the last key of the page before.
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        keys = sorted(key for key in self.server.objects if key.startswith(prefix) and key > after)
        page = keys[: int(query.get("max-keys", PAGE))]
        token = (
            f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
            if len(page) < len(keys)
            else ""
        )
        items = "".join(self._item(key) for key in page)
        return self._answer(200, body=f"<ListBucketResult>{token}{items}</ListBucketResult>")

    def _item(self, key: str) -> str:
        found = self.server.objects[key]
        modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.modified))
        return (
            f"<Contents><Key>{escape(key)}</Key><Size>{len(found.data)}</Size>"
            f"<LastModified>{modified}</LastModified><ETag>{escape(found.etag)}</ETag></Contents>"
        )

    def _error(self, status: int, code: str) -> None:
        self._answer(status, body=f"<Error><Code>{code}</Code></Error>")

    def _answer(
        self, status: int, headers: list[tuple[str, str]] | None = None, body: str | bytes = b""
    ) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in headers or []:
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD" and status != 204:
            self.wfile.write(data)
        self.wfile.flush()
