"""From what the operating system says to what the caller does next. Every sentence names the key."""

from __future__ import annotations

import errno

from holdfast.errors import ConflictError, HoldfastError, InvalidInputError, StoreUnavailableError

_TRY_LATER = {
    errno.ENOSPC: ("no space is left", "free some space there; nothing that was stored is harmed"),
    errno.EDQUOT: ("the disk quota is used up", "free some space there; nothing that was stored is harmed"),
    errno.EFBIG: (
        "the file would be larger than the system allows",
        "look at the file size limit: ulimit -f",
    ),
    errno.EIO: (
        "the disk reported an I/O error",
        "look at the disk (dmesg), then: holdfast verify --read-data",
    ),
    errno.EMFILE: ("this process has too many open files", "raise the limit: ulimit -n"),
    errno.ENFILE: ("the system has too many open files", "raise the limit: sysctl fs.file-max"),
    errno.EROFS: ("the file system is read-only", "mount it writable, or open the store elsewhere"),
    errno.EACCES: ("permission is denied", "let this user read and write there"),
    errno.EPERM: ("the operation is not permitted", "let this user read and write there"),
    errno.ESTALE: ("the network file system lost the file", "mount it again"),
}

_NO_LINKS = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV}


def translated(error: OSError, doing: str, key: str, root: str) -> HoldfastError:
    """The typed error for ``error``, met while ``doing`` something to ``key`` of the store at ``root``."""
    what = f"{doing} {key!r} in {root}"
    code = error.errno
    if code == errno.ENAMETOOLONG:
        return InvalidInputError(f"{what}: the name is too long for this file system").with_hint(
            "use shorter names, or a root with a shorter path"
        )
    if code in (errno.ENOTDIR, errno.EISDIR):
        return ConflictError(f"{what}: an object and a directory want the same name there").with_hint(
            "on a file system no key may continue another one with a slash"
        )
    if doing == "creating" and code in _NO_LINKS:
        return InvalidInputError(
            f"{what}: this file system has no hard links, and create rests on them"
        ).with_hint("use another file system, or an object store")
    said, hint = _TRY_LATER.get(code or 0, (error.strerror or str(error), StoreUnavailableError.hint))
    return StoreUnavailableError(f"{what}: {said}").with_hint(hint)
