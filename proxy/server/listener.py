"""One handler for every request of a listener: read, classify, run, write."""

from __future__ import annotations

import asyncio
import fnmatch
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

from proxy import errors
from proxy.chain import Next
from proxy.config import Listener as Options
from proxy.config.shape import Heartbeat
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
from proxy.server.request import Request
from proxy.services import new_id
from proxy.telemetry import UPSTREAM_ERRORS, Access, AccessLog, answered

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
    """The handler of a listener's connections."""

    def __init__(self, site: Site) -> None:
        self._site = site
        patterns = "|".join(fnmatch.translate(pattern) for pattern in site.options.passthrough)
        self._passes = re.compile(patterns).match if patterns else lambda _path: None

    async def __call__(self, request: Request) -> Reply:
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
                seconds = time.perf_counter() - began
                sent = (request.method, reply.path, reply.code, reply.sent, seconds, request_id)
                self._site.access_log.add(Access(time.time(), *sent))
        return reply

    async def _answer(self, request: Request, reply: Reply) -> None:
        path = reply.path
        if self._site.health is not None and path in self._site.health.paths:
            reply.looked_up(await self._site.health.answer(path))
            reply.kind = "health"
            return
        kind, operation = openai.classify(request.method, path, _upgrades(request))
        reply.kind = kind.value
        owner = self._site.identify(request.headers)
        if kind is Kind.UPGRADE:
            raise errors.UpgradeRefused()
        if kind is Kind.STATE:
            await self._state(request, reply, path, owner)
        elif kind is Kind.CANCEL and await self._cancelled(request, reply, path, owner):
            pass
        else:
            await self._site.chain(await self._turn(request, path, operation, owner), reply)

    async def _state(self, request: Request, reply: Reply, path: str, owner: Owner) -> None:
        body = await self._body(request)
        looked = await self._site.objects.answer(Lookup(request.method, path, request.query, body, owner))
        if looked is None:
            raise errors.NotFound(f"There is nothing at {path}.")
        reply.looked_up(looked)

    async def _cancelled(self, request: Request, reply: Reply, path: str, owner: Owner) -> bool:
        body = await self._site.cancel(owner, unquote(openai.cancelled_id(path)))
        if body is not None:
            reply.looked_up(json_reply(body))
        return body is not None

    async def _turn(self, request: Request, path: str, operation: Operation, owner: Owner) -> Turn:
        said = http.read(request.headers)
        if operation is Operation.OTHER and not self._passes(path):
            raise errors.NotFound(f"There is nothing at {path}.")
        if operation is not Operation.OTHER and said.media_type and not http.is_json(said.media_type):
            raise errors.UnsupportedMediaType("Content-Type must be application/json.")
        raw = await self._body(request)
        headers = said.end_to_end
        if said.encoding is not None:
            headers = http.without(headers, {b"content-encoding"})
        return Turn(request.method, request.target, path, headers, operation, Body(raw), owner)

    async def _body(self, request: Request) -> bytes:
        options = self._site.options
        return await inbound.body(request, options.max_body_bytes, options.read_timeout_seconds)


def _upgrades(request: Request) -> bool:
    return request.method == "GET" and (http.get(request.headers, b"upgrade") or b"").lower() == b"websocket"


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


def refusal(fault: str) -> bytes:
    """The whole answer to a client whose bytes are not HTTP."""
    body = error_body(errors.InvalidRequest(f"The request is not valid HTTP/1.1: {fault}"))
    head = ((b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body)), (b"Connection", b"close"))
    return b"HTTP/1.1 400 Bad Request\r\n" + http.block(head) + b"\r\n" + body


class Pages:
    """The handler of the admin listener: health and metrics, and nothing else."""

    def __init__(self, health: Health) -> None:
        self._health = health

    async def __call__(self, request: Request) -> Reply:
        """Answers one request."""
        reply = Reply(request, new_id("req_"), 0.0, Heartbeat())
        if request.path in self._health.paths:
            reply.looked_up(await self._health.answer(request.path))
        else:
            reply.fail(errors.NotFound(f"There is nothing at {request.path}."))
        reply.finish()
        return reply
