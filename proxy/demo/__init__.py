"""`rejoinder demo`: a backend, the gateway in front of it, and a conversation to watch."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from proxy.config import DEFAULT_CHAIN
from proxy.demo import vllm
from proxy.demo.process import Child, DemoError, Progress, Say, require_free, wait_until_answers, write

GATEWAY_LIMIT = 30.0
LIGHTHOUSE = (
    "# The lighthouse\n\nThe lighthouse of Vardø was built in 1896. Its keeper keeps a grey cat named Mistral.\n"
)


def run(backend: str | None, port: int, wait: bool) -> int:
    """Returns the exit code: 0 once everything was shown and stopped, 1 with the reason on standard error."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with ExitStack() as stack:
            require_free(port)
            _show(stack, (backend or _own_backend(stack, _say)).rstrip("/"), port, wait)
    except DemoError as failure:
        sys.stderr.write(f"rejoinder demo: {failure}\n")
        return 1
    except KeyboardInterrupt:
        _say("stopped")
    return 0


def _say(line: str) -> None:
    write(f"{line}\n")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _own_backend(stack: ExitStack, say: Say) -> str:
    server = vllm.start(vllm.install(vllm.default_home(), say), say)
    stack.callback(server.stop)
    return server.url


def _show(stack: ExitStack, backend: str, port: int, wait: bool) -> None:
    stack.callback(signal.signal, signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not orphan the children
    model = served_model(backend)
    gateway = _gateway(stack, backend, port)
    _say(f"✓ gateway at {gateway}, backend {backend} serves {model}")
    _converse(gateway, model)
    _say(f"\nThe gateway is at {gateway}/v1; try:\n{curl(gateway, model)}")
    if wait:
        _say("Everything keeps running until Ctrl-C.")
        while True:
            signal.pause()


def curl(gateway: str, model: str) -> str:
    body = json.dumps(
        {"model": model, "instructions": "You answer in one short sentence.", "input": "What is the sea?"}
    )
    return f"curl -s {gateway}/v1/responses -H 'Content-Type: application/json' -d '{body}'"


def _converse(gateway: str, model: str) -> None:
    try:
        from proxy.demo.conversation import show  # noqa: PLC0415  # the SDK comes with the extra `demo` only
    except ModuleNotFoundError as missing:
        raise DemoError(f"{missing.name} is not installed: pip install 'rejoinder[demo]'") from missing
    show(gateway, model, _say)


def _gateway(stack: ExitStack, backend: str, port: int) -> str:
    """The gateway as a person would start it, on a database that goes away with the demo."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rejoinder-demo-")))
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "proxy", "serve", "-c", str(_configuration(folder)), "--backend", backend]
    command += ["--store", f"sqlite:///{folder / 'demo.db'}", "--port", str(port)]
    progress = Progress(_say, "start the gateway")
    child = Child("the gateway", command, folder / "gateway.log")
    stack.callback(child.stop)
    wait_until_answers(child, f"{url}/readyz", progress, GATEWAY_LIMIT)
    return url


def _configuration(folder: Path) -> Path:
    """The default chain, with a folder of files that the gateway can search."""
    files = folder / "files"
    files.mkdir()
    (files / "lighthouse.md").write_text(LIGHTHOUSE, encoding="utf-8")
    tools = {"file_search": {"folders": {"demo": str(files)}}}
    chain = [{"filter": name, **({"tools": tools} if name == "agentic_loop" else {})} for name in DEFAULT_CHAIN]
    path = folder / "gateway.yaml"
    path.write_text(json.dumps({"chains": {"default": chain}}), encoding="utf-8")  # JSON is YAML
    return path


def served_model(backend: str) -> str:
    if not backend.startswith(("http://", "https://")):
        raise DemoError(f"the backend must be an http:// or https:// URL, not {backend!r}")
    try:
        with urllib.request.urlopen(f"{backend}/v1/models", timeout=5.0) as response:  # noqa: S310  # checked above
            return str(json.load(response)["data"][0]["id"])
    except (OSError, ValueError, LookupError) as failure:
        raise DemoError(f"{backend}/v1/models does not name a model: {failure}") from failure
