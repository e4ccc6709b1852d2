"""Content encodings undone, never beyond a limit."""

from __future__ import annotations

import zlib

import zstandard

_WINDOW = 128 * 1024 * 1024  # the largest that the zstd command makes without being told to


class UnknownEncoding(ValueError):
    """An encoding that is not undone here."""


class BadEncoding(ValueError):
    """The bytes are not what their encoding says; the message tells why."""


class TooLong(ValueError):
    """More comes out than may."""


def decoded(raw: bytes, encoding: bytes, limit: int) -> bytes:
    """The bytes without their content encoding (lower case). Raises `UnknownEncoding`, `BadEncoding`, `TooLong`."""
    if encoding in (b"identity", b"") or not raw:
        return raw
    if encoding not in (b"gzip", b"x-gzip", b"zstd"):
        raise UnknownEncoding(encoding)
    try:
        return _unzstd(raw, limit) if encoding == b"zstd" else _gunzip(raw, limit)
    except (zlib.error, zstandard.ZstdError) as error:
        raise BadEncoding(str(error)) from error


def _gunzip(raw: bytes, limit: int) -> bytes:
    machine = zlib.decompressobj(wbits=31)
    data = machine.decompress(raw, limit + 1)
    if len(data) > limit:
        raise TooLong(limit)
    if not machine.eof:
        raise BadEncoding("it ends too early")
    if machine.unused_data:
        raise BadEncoding("something follows its end")
    return data


def _unzstd(raw: bytes, limit: int) -> bytes:
    with zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(raw) as reader:
        data = reader.read(limit + 1)
    if len(data) > limit:
        raise TooLong(limit)
    # A stream reader takes a cut frame for a short one; a decompression object knows whether it saw the end.
    machine = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
    machine.decompress(raw)
    if not machine.eof:
        raise BadEncoding("it ends too early")
    if machine.unused_data:
        raise BadEncoding("something follows its end")
    return data
