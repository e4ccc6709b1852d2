"""One handler for every request of a listener: read, classify, run, write."""

from __future__ import annotations

import asyncio
import fnmatch
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote

from aiohttp import web

from proxy import errors
from proxy.chain import Next
from proxy.config import Listener as Options
from proxy.facades import error_body, openai
from proxy.facades.openai import Kind
from proxy.protocol import headers as http
from proxy.protocol.lookup import Lookup, json_reply
from proxy.protocol.records import Owner
from proxy.protocol.turn import Body, Operation, Turn
from proxy.server import inbound
from proxy.server.cancel import Cancel
from proxy.server.health import Health
from proxy.server.objects import Objects
from proxy.server.reply import Reply
from proxy.services import new_id
from proxy.telemetry import UPSTREAM_ERRORS, Access, AccessLog, answered

HEAD_SECONDS = 60.0  # for the first request head of a connection

log = logging.getLogger("rejoinder.listener")


@dataclass(frozen=True)
class Site:
    """What a listener serves."""

    options: Options
    chain: Next
    identify: Callable[[http.Headers], Owner]
    objects: Objects
    cancel: Cancel
    health: Health | None  # None: another listener serves it
    access_log: AccessLog | None


class Listener:
    """The aiohttp handler."""

    def __init__(self, site: Site) -> None:
        self._site = site
        patterns = "|".join(fnmatch.translate(pattern) for pattern in site.options.passthrough)
        self._passes = re.compile(patterns).match if patterns else lambda _path: None

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request; whatever goes wrong is said to the client here, and nowhere else."""
        began = time.perf_counter()
        request_id = new_id("req_")
        reply = Reply(request, request_id, began, self._site.options.heartbeat)
        try:
            await self._answer(request, reply)
        except errors.ProxyError as error:
            _count(error)
            reply.fail(error)
        except ConnectionResetError:
            reply.abort()  # the client left while something was written to it: nobody's fault, nothing to say
        except asyncio.CancelledError:
            reply.abort()
            raise
        except Exception:
            log.exception("request %s failed", request_id)
            reply.fail(errors.ProxyError(f"The gateway failed. Its log names this request as {request_id}."))
        finally:
            _finish(reply)
            answered(reply.kind, reply.code)
            if self._site.access_log is not None:
                self._log(self._site.access_log, request, reply, began)
        return cast(web.StreamResponse, reply)

    async def _answer(self, request: web.BaseRequest, reply: Reply) -> None:
        path = reply.path
        if self._site.health is not None and path in self._site.health.paths:
            reply.looked_up(await self._site.health.answer(path))
            reply.kind = "health"
            return
        kind, operation = openai.classify(request.method, path, _upgrades(request))
        reply.kind = kind.value
        owner = self._site.identify(request.raw_headers)
        if kind is Kind.UPGRADE:
            raise errors.UpgradeRefused()
        if kind is Kind.STATE:
            await self._state(request, reply, path, owner)
        elif kind is Kind.CANCEL and await self._cancelled(request, reply, path, owner):
            pass
        else:
            await self._site.chain(await self._turn(request, path, operation, owner), reply.send)

    async def _state(self, request: web.BaseRequest, reply: Reply, path: str, owner: Owner) -> None:
        body = await self._body(request)
        query = request.raw_path.partition("?")[2]
        looked = await self._site.objects.answer(Lookup(request.method, path, query, body, owner))
        if looked is None:
            raise errors.NotFound(f"There is nothing at {path}.")
        reply.looked_up(looked)

    async def _cancelled(self, request: web.BaseRequest, reply: Reply, path: str, owner: Owner) -> bool:
        body = await self._site.cancel(owner, unquote(openai.cancelled_id(path)))
        if body is not None:
            reply.looked_up(json_reply(body))
        return body is not None

    async def _turn(self, request: web.BaseRequest, path: str, operation: Operation, owner: Owner) -> Turn:
        if operation is Operation.OTHER and not self._passes(path):
            raise errors.NotFound(f"There is nothing at {path}.")
        if operation is not Operation.OTHER:
            media = http.media_type(request.raw_headers)
            if media and not http.is_json(media):
                raise errors.UnsupportedMediaType("Content-Type must be application/json.")
        headers = http.end_to_end(request.raw_headers)
        raw = await self._body(request)
        if http.get(headers, b"content-encoding") is not None:
            headers = http.without(headers, {b"content-encoding"})
        target = request.raw_path.encode("utf-8", "surrogateescape")
        return Turn(request.method, target, path, headers, operation, Body(raw), owner)

    async def _body(self, request: web.BaseRequest) -> bytes:
        options = self._site.options
        return await inbound.body(request, options.max_body_bytes, options.read_timeout_seconds)

    @staticmethod
    def _log(log: AccessLog, request: web.BaseRequest, reply: Reply, began: float) -> None:
        milliseconds = round((time.perf_counter() - began) * 1e3, 1)
        log.add(Access(request.method, reply.path, reply.code, reply.sent, milliseconds, reply.request_id))


class Protocol(web.RequestHandler):
    """aiohttp's, which answers a request that is not HTTP in the wire's own error shape.

    A connection that brings no whole request head within `HEAD_SECONDS` is closed; aiohttp would wait for ever.
    """

    __slots__ = ("_patience",)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self._patience = self._loop.call_later(HEAD_SECONDS, self._lose_patience)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Ends the waiting."""
        self._patience.cancel()
        super().connection_lost(exc)

    def _lose_patience(self) -> None:
        if self._request_count == 0 and self.transport is not None:
            self.transport.close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that could not be parsed."""
        error: errors.ProxyError = errors.InvalidRequest(f"The request is not valid HTTP/1.1: {message or exc}")
        if status >= 500:
            log.error("a request failed outside its handler", exc_info=exc)
            error = errors.ProxyError()
        answer = web.Response(status=status, body=error_body(error), content_type="application/json")
        answer.force_close()
        return answer


class Server(web.Server):
    """aiohttp's low-level server, with our `Protocol`."""

    def __call__(self) -> web.RequestHandler:
        return Protocol(self, loop=self._loop, **self._kwargs)


def _upgrades(request: web.BaseRequest) -> bool:
    return request.method == "GET" and (http.get(request.raw_headers, b"upgrade") or b"").lower() == b"websocket"


def _finish(reply: Reply) -> None:
    try:
        reply.finish()
    except ConnectionResetError:
        log.debug("the client left before the last byte")


def _count(error: errors.ProxyError) -> None:
    if isinstance(error, errors.UpstreamError):
        UPSTREAM_ERRORS.labels(error.code or error.type).inc()
    if error.status >= 500:
        # A backend or a store that is away is no fault of this program: its message says all there is.
        outside = isinstance(error, errors.UpstreamError | errors.StoreUnavailable)
        log.warning("%s: %s", type(error).__name__, error.message, exc_info=None if outside else error.__cause__)
