"""docs/errors.md, made from proxy/errors.py: `python -m tests.docs.errors` (or `make docs`) prints it."""

from __future__ import annotations

import inspect
import sys

from proxy import errors

HEAD = """\
# Errors

Made from `proxy/errors.py` by `make docs`; a test keeps it true.

Before an answer has begun, an error is a status and a body of OpenAI's shape:

```json
{"error": {"message": "…", "type": "invalid_request_error", "param": "input", "code": "invalid_type"}}
```

Once a stream has begun it is the last event. A backend's failure of a response that had begun is `response.failed`; any
other error is an `error` event. An error that the backend itself answers with is passed on as it is.

The type is `invalid_request_error` below 500, else `server_error`. The message is the one below where nothing more
precise is known.

| Error | Status | Code | Message |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The whole page."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.ProxyError)]
    rows = [f"| `{kind.__name__}` | {kind.status} | {_code(kind)} | {_message(kind)} |" for kind in kinds]
    return HEAD + "\n".join(rows) + "\n"


def _message(kind: type[errors.ProxyError]) -> str:
    return (inspect.getdoc(kind) or "").splitlines()[0]


def _code(kind: type[errors.ProxyError]) -> str:
    return f"`{kind.code}`" if kind.code else "null"


if __name__ == "__main__":
    sys.stdout.write(page())
