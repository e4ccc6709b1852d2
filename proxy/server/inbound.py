"""A client's request, read whole: bounded in size and time, and decompressed."""

from __future__ import annotations

import asyncio

from proxy import errors
from proxy.protocol import headers as http
from proxy.protocol.encodings import BadEncoding, TooLong, UnknownEncoding, decoded
from proxy.server.request import Request, too_large


async def body(request: Request, limit: int, seconds: float) -> bytes:
    """The request's body, decompressed. Raises a kind of `InvalidRequest` that names the limit or the fault."""
    if request.complete:  # it came with the head
        raw = await request.body(limit)
    else:
        raw = await _rest(request, limit, seconds)
    encoding = http.read(request.headers).encoding
    if encoding is None:
        return raw
    try:
        return decoded(raw, encoding, limit)
    except TooLong:
        raise too_large(limit) from None
    except UnknownEncoding:
        raise errors.UnsupportedMediaType("Content-Encoding must be gzip, zstd or identity.") from None
    except BadEncoding as error:
        raise errors.InvalidRequest(f"The request body is not valid {encoding.decode('latin-1')}: {error}") from error


async def _rest(request: Request, limit: int, seconds: float) -> bytes:
    length = http.read(request.headers).length
    if length is not None and int(length) > limit:
        raise too_large(limit)
    request.invite()
    try:
        async with asyncio.timeout(seconds):
            return await request.body(limit)
    except TimeoutError:
        raise errors.RequestTimeout(f"The request did not arrive within {seconds:g} seconds.") from None
