"""Compression of packed profiles: zstd if a library for it is installed, else gzip. Each object names its method.

Python has zstd itself from 3.14 on; before that it is the package `backports.zstd`, of the extra `profiles`.
"""

import gzip
import zlib
from types import ModuleType
from typing import IO, Final, cast

from leasekeeper.errors import InputError

ZSTD: Final = "zstd"
GZIP: Final = "gzip"
GZIP_LEVEL: Final = 1
ZSTD_LEVEL: Final = 3


def best() -> str:
    """The method to use on this machine."""
    return GZIP if _zstd() is None else ZSTD


def check(method: str) -> None:
    """Raise InputError if this machine cannot decompress this method."""
    if method == ZSTD and _zstd() is None:
        raise InputError("this snapshot is compressed with zstd: install leasekeeper with the extra profiles")
    if method not in (ZSTD, GZIP):
        raise InputError(f"this snapshot is compressed with {method!r}, which this version does not know: upgrade it")


def writer(method: str, target: IO[bytes]) -> IO[bytes]:
    """A stream that compresses into `target`, and ends what it wrote when it is closed."""
    if method == ZSTD:
        return cast("IO[bytes]", _needed().ZstdFile(target, "w", level=ZSTD_LEVEL))
    return cast("IO[bytes]", gzip.GzipFile("", "wb", GZIP_LEVEL, target, mtime=0))


def reader(method: str, source: IO[bytes]) -> IO[bytes]:
    """A stream of what was compressed."""
    if method == ZSTD:
        return cast("IO[bytes]", _needed().ZstdFile(source))
    return cast("IO[bytes]", gzip.GzipFile(fileobj=source))


def errors() -> tuple[type[Exception], ...]:
    """The exceptions of reading damaged content."""
    zstd = _zstd()
    return (zlib.error, gzip.BadGzipFile, *(() if zstd is None else (zstd.ZstdError,)))


def _needed() -> ModuleType:
    zstd = _zstd()
    if zstd is None:
        raise InputError("zstd is not installed")
    return zstd


def _zstd() -> ModuleType | None:
    try:
        from compression import zstd  # type: ignore[import-not-found]  # Python 3.14
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            return None
    return cast("ModuleType", zstd)
