"""Which request is a turn, which asks the store, and which is nobody's business here."""

from __future__ import annotations

import json

import pytest

from proxy import errors
from proxy.facades import error_body
from proxy.facades.openai import Kind, cancelled_id, classify, late_error
from proxy.protocol.turn import Operation


@pytest.mark.parametrize(
    ("method", "path", "kind", "operation"),
    [
        ("POST", "/v1/responses", Kind.TURN, Operation.CREATE),
        ("POST", "/v1/responses/", Kind.TURN, Operation.CREATE),
        ("POST", "/v1/responses/input_tokens", Kind.TURN, Operation.INPUT_TOKENS),
        ("POST", "/v1/responses/compact", Kind.TURN, Operation.COMPACT),
        ("GET", "/v1/responses/resp_1", Kind.STATE, Operation.OTHER),
        ("DELETE", "/v1/responses/resp_1", Kind.STATE, Operation.OTHER),
        ("GET", "/v1/responses/resp%2F1", Kind.STATE, Operation.OTHER),
        ("GET", "/v1/responses/resp_1/input_items", Kind.STATE, Operation.OTHER),
        ("POST", "/v1/responses/resp_1/cancel", Kind.CANCEL, Operation.OTHER),
        ("GET", "/v1/responses/resp_1/cancel", Kind.VERBATIM, Operation.OTHER),
        ("GET", "/v1/responses/resp_1/other", Kind.VERBATIM, Operation.OTHER),
        ("POST", "/v1/conversations", Kind.STATE, Operation.OTHER),
        ("GET", "/v1/conversations/conv_1", Kind.STATE, Operation.OTHER),
        ("POST", "/v1/conversations/conv_1/items", Kind.STATE, Operation.OTHER),
        ("DELETE", "/v1/conversations/conv_1/items/msg_1", Kind.STATE, Operation.OTHER),
        ("GET", "/v1/conversationsx", Kind.VERBATIM, Operation.OTHER),
        ("GET", "/v1/responses", Kind.VERBATIM, Operation.OTHER),
        ("GET", "/v1/responses/compact", Kind.VERBATIM, Operation.OTHER),
        ("GET", "/v1/models", Kind.VERBATIM, Operation.OTHER),
        ("POST", "/v1/chat/completions", Kind.VERBATIM, Operation.OTHER),
        ("POST", "/v2/responses", Kind.VERBATIM, Operation.OTHER),
        ("GET", "/", Kind.VERBATIM, Operation.OTHER),
    ],
)
def test_a_request_is_known_by_its_method_and_path(method: str, path: str, kind: Kind, operation: Operation):
    assert classify(method, path, upgrade=False) == (kind, operation)


def test_a_websocket_is_known_by_its_upgrade():
    assert classify("GET", "/v1/responses", upgrade=True)[0] is Kind.UPGRADE
    assert classify("GET", "/v1/realtime", upgrade=True)[0] is Kind.VERBATIM


@pytest.mark.parametrize(
    ("path", "id_"),
    [("/v1/responses/resp_1/cancel", "resp_1"), ("/v1/responses/a%20b/cancel/", "a%20b"), ("/v1/responses/resp_1", "")],
)
def test_the_id_of_a_cancel_request(path: str, id_: str):
    assert cancelled_id(path) == id_


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ProxyError)]


def made(kind: type[errors.ProxyError], message: str = "", param: str | None = None) -> errors.ProxyError:
    """An error of this class, whatever else its own constructor wants."""
    error = kind.__new__(kind)
    errors.ProxyError.__init__(error, message, param=param)
    return error


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_body_in_openais_shape(kind: type[errors.ProxyError]):
    body = json.loads(error_body(made(kind)))
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["message"] == (kind.__doc__ or "").splitlines()[0]
    assert body["error"]["type"] == ("invalid_request_error" if kind.status < 500 else "server_error")


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_last_event_too(kind: type[errors.ProxyError]):
    event = late_error(made(kind, "it broke", "input"), 7)
    assert event.terminal
    assert json.loads(event.data) == {
        "type": "error",
        "sequence_number": 7,
        "code": kind.code,
        "message": "it broke",
        "param": "input",
    }
