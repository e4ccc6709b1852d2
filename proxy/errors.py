"""Every failure a client can see: its status, type, code and default message.

The class says whose fault it was; the first line of a class's docstring is the default message. Translation to the wire
happens in one place, `proxy.facades`; only the text of a `ProxyError` ever reaches a client.
"""

from __future__ import annotations

from typing import ClassVar

RawHeaders = tuple[tuple[bytes, bytes], ...]


class ProxyError(Exception):
    """The gateway could not serve this request."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = "server_error"
    default_param: ClassVar[str | None] = None

    def __init__(self, message: str = "", *, param: str | None = None, headers: RawHeaders = ()) -> None:
        first_line = (type(self).__doc__ or "").splitlines()[0]
        self.message = message or first_line
        self.param = param if param is not None else self.default_param
        self.headers = headers
        super().__init__(self.message)


class InvalidRequest(ProxyError):
    """The request is not valid."""

    status = 400
    type = "invalid_request_error"
    code: ClassVar[str | None] = "invalid_request_error"


class MutuallyExclusive(InvalidRequest):
    """Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Use one of them."""

    code = "mutually_exclusive_parameters"
    default_param = "previous_response_id"


class UnsupportedParameter(InvalidRequest):
    """This parameter is not supported."""

    code = "unsupported_parameter"


class InvalidType(InvalidRequest):
    """A parameter has the wrong type."""

    code = "invalid_type"


class InvalidValue(InvalidRequest):
    """A parameter has a value that is not allowed."""

    code = "invalid_value"


class MissingParameter(InvalidRequest):
    """A required parameter is missing."""

    code = "missing_required_parameter"


class PreviousResponseNotFound(InvalidRequest):
    """The previous response was not found."""

    code = "previous_response_not_found"
    default_param = "previous_response_id"


class NotContinuable(InvalidRequest):
    """Only a completed response can be continued."""

    default_param = "previous_response_id"


class MissingOwner(InvalidRequest):
    """The request does not say whose state it is about."""

    status = 401
    code = "missing_state_owner"


class InvalidOwner(InvalidRequest):
    """The header that names the owner is malformed."""

    code = "invalid_state_owner"


class NotFound(InvalidRequest):
    """There is nothing at this address."""

    status = 404
    code: ClassVar[str | None] = None


class ResponseNotFound(NotFound):
    """The response was not found."""


class ConversationNotFound(NotFound):
    """The conversation was not found."""

    code = "conversation_not_found"


class MethodNotAllowed(InvalidRequest):
    """This method is not allowed here."""

    status = 405
    code = None


class ConversationLocked(InvalidRequest):
    """Another request is operating on this conversation. Retry in a few seconds."""

    status = 409
    code = "conversation_locked"
    default_param = "conversation"


class BodyTooLarge(InvalidRequest):
    """The request body is too large."""

    status = 413
    code = "request_too_large"


class RequestTimeout(InvalidRequest):
    """The request did not arrive in time."""

    status = 408
    code = "request_timeout"


class UpgradeRefused(InvalidRequest):
    """WebSockets are not spoken here; use HTTP."""

    status = 426
    code = "upgrade_refused"


class Cancelled(InvalidRequest):
    """The response is over; it cannot be cancelled."""

    code = "invalid_request_error"


class UnsupportedMediaType(InvalidRequest):
    """The media type of the request body is not supported."""

    status = 415
    code = "unsupported_media_type"


class StoreError(ProxyError):
    """The state store failed; nothing was stored."""


class StoreUnavailable(StoreError):
    """The state store is not available."""


class StoreConflict(StoreError):
    """The backend repeated the id of a response that is already stored."""


class LeaseLost(StoreError):
    """The conversation was taken over by another request before this turn could be stored."""


class ToolError(ProxyError):
    """A hosted tool could not be prepared."""

    status = 502
    code = "tool_error"
    server_label: str = ""  # of the server that could not be asked


class RoundLimit(ProxyError):
    """The model asked for tools in more rounds than are allowed."""

    status = 508
    code = "round_limit_exceeded"

    def __init__(self, message: str, response: bytes) -> None:
        super().__init__(message)
        self.response = response  # what was done until then, as an incomplete response


class UpstreamError(ProxyError):
    """The backend failed."""

    status = 502
    code = "upstream_error"


class UpstreamUnreachable(UpstreamError):
    """The backend could not be reached."""

    code = "upstream_unreachable"


class UpstreamDropped(UpstreamError):
    """The backend closed the connection before it answered."""

    code = "upstream_dropped"


class UpstreamProtocol(UpstreamError):
    """The backend's answer could not be understood."""

    code = "upstream_protocol_error"


class StreamCut(UpstreamError):
    """The backend's stream ended before the response was complete."""

    code = "upstream_stream_cut"


class UpstreamTimeout(UpstreamError):
    """The backend took too long."""

    status = 504
    code = "upstream_timeout"


class ConnectTimeout(UpstreamTimeout):
    """The backend did not accept a connection in time."""

    code = "upstream_connect_timeout"


class FirstByteTimeout(UpstreamTimeout):
    """The backend did not begin its answer in time."""

    code = "upstream_first_byte_timeout"


class IdleTimeout(UpstreamTimeout):
    """The backend fell silent in the middle of its answer."""

    code = "upstream_idle_timeout"


class TotalTimeout(UpstreamTimeout):
    """The backend did not finish its answer in time."""

    code = "upstream_total_timeout"


class Overloaded(ProxyError):
    """The gateway is at its limit. Retry later."""

    status = 503
    code = "server_overloaded"


class ConfigError(Exception):
    """The configuration cannot be used; the message names the path, the value and what is allowed."""
