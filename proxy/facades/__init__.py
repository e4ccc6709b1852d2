"""The wire shapes of client protocols; one file each, pure."""

from __future__ import annotations

from proxy.errors import ProxyError
from proxy.protocol import jsonbytes


def error_body(error: ProxyError) -> bytes:
    """The JSON body of an error answer."""
    members = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return jsonbytes.encode({"error": members})
