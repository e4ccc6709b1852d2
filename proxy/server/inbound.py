"""A client's request, read whole: bounded in size and time, and decompressed."""

from __future__ import annotations

import asyncio
import zlib

import zstandard
from aiohttp import web
from aiohttp.client_exceptions import ClientError

from proxy import errors
from proxy.protocol import headers as http

_WINDOW = 128 * 1024 * 1024  # the largest that the zstd command makes without being told to


async def body(request: web.BaseRequest, limit: int, seconds: float) -> bytes:
    """The request's body, decompressed. Raises a kind of `InvalidRequest` that names the limit or the fault."""
    if not request.body_exists:
        return b""
    length = request.content_length
    if length is not None and length > limit:
        raise too_large(limit)
    try:
        async with asyncio.timeout(seconds):
            raw = await _read(request, limit)
    except TimeoutError:
        raise errors.RequestTimeout(f"The request did not arrive within {seconds:g} seconds.") from None
    except (ClientError, web.RequestPayloadError, ValueError) as error:
        raise errors.InvalidRequest(f"The request body could not be read: {error}") from error
    encoding = (http.get(request.raw_headers, b"content-encoding") or b"identity").strip().lower()
    return decoded(raw, encoding, limit)


async def _read(request: web.BaseRequest, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := await request.content.readany():
        parts.append(part)
        size += len(part)
        if size > limit:
            raise too_large(limit)
    return b"".join(parts)


def decoded(raw: bytes, encoding: bytes, limit: int) -> bytes:
    """The body without its content encoding, at most `limit` bytes of it."""
    if encoding == b"identity" or not raw:
        return raw
    if encoding not in (b"gzip", b"x-gzip", b"zstd"):
        raise errors.UnsupportedMediaType("Content-Encoding must be gzip, zstd or identity.")
    try:
        return _unzstd(raw, limit) if encoding == b"zstd" else _gunzip(raw, limit)
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise errors.InvalidRequest(f"The request body is not valid {encoding.decode()}: {error}") from error


def _gunzip(raw: bytes, limit: int) -> bytes:
    machine = zlib.decompressobj(wbits=31)
    data = machine.decompress(raw, limit + 1)
    if len(data) > limit:
        raise too_large(limit)
    if not machine.eof:
        raise EOFError("it ends too early")
    return data


def _unzstd(raw: bytes, limit: int) -> bytes:
    with zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(raw) as reader:
        data = reader.read(limit + 1)
    if len(data) > limit:
        raise too_large(limit)
    if _cut_zstd(raw):
        raise EOFError("it ends too early")
    return data


def _cut_zstd(raw: bytes) -> bool:
    # A stream reader takes a cut frame for a short one; a decompression object knows whether it saw the end.
    machine = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
    machine.decompress(raw)
    return not machine.eof


def too_large(limit: int) -> errors.BodyTooLarge:
    """The error that names the limit."""
    return errors.BodyTooLarge(f"The request body is larger than {limit} bytes.")
