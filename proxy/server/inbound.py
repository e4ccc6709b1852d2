"""A client's request, read whole: bounded in size and time, and decompressed."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.client_exceptions import ClientError

from proxy import errors
from proxy.protocol import headers as http
from proxy.protocol.encodings import BadEncoding, TooLong, UnknownEncoding, decoded


async def body(request: web.BaseRequest, limit: int, seconds: float) -> bytes:
    """The request's body, decompressed. Raises a kind of `InvalidRequest` that names the limit or the fault."""
    if not request.body_exists:
        return b""
    length = request.content_length
    if length is not None and length > limit:
        raise too_large(limit)
    try:
        if request.content.is_eof():  # it came with the head
            raw = request.content.read_nowait()
        else:
            _invite(request)
            async with asyncio.timeout(seconds):
                raw = await _read(request, limit)
    except TimeoutError:
        raise errors.RequestTimeout(f"The request did not arrive within {seconds:g} seconds.") from None
    except (ClientError, web.RequestPayloadError, ValueError) as error:
        raise errors.InvalidRequest(f"The request body could not be read: {error}") from error
    return _decoded(raw, _encoding(request), limit)


def _encoding(request: web.BaseRequest) -> bytes:
    return (http.get(request.raw_headers, b"content-encoding") or b"identity").strip().lower()


def _invite(request: web.BaseRequest) -> None:
    """Answers a client that asks before it sends; aiohttp does so for its routed applications only."""
    if (http.get(request.raw_headers, b"expect") or b"").lower() == b"100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _decoded(raw: bytes, encoding: bytes, limit: int) -> bytes:
    if len(raw) > limit:
        raise too_large(limit)
    try:
        return decoded(raw, encoding, limit)
    except TooLong:
        raise too_large(limit) from None
    except UnknownEncoding:
        raise errors.UnsupportedMediaType("Content-Encoding must be gzip, zstd or identity.") from None
    except BadEncoding as error:
        raise errors.InvalidRequest(f"The request body is not valid {encoding.decode('latin-1')}: {error}") from error


async def _read(request: web.BaseRequest, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := await request.content.readany():
        parts.append(part)
        size += len(part)
        if size > limit:
            raise too_large(limit)
    return b"".join(parts)


def too_large(limit: int) -> errors.BodyTooLarge:
    """The error that names the limit."""
    return errors.BodyTooLarge(f"The request body is larger than {limit} bytes.")
