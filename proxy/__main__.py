"""The command line: serve, check, schema, reference, migrate, demo."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from proxy import app, config, errors, processes
from proxy.loader import filter_names
from proxy.reference import json_schema, reference
from proxy.store import schema as store_schema

_BAD_CONFIG = 2


def _reports_mistakes(command: Callable[..., Any]) -> Callable[..., Any]:
    """A mistake in the configuration ends the command with its message and status 2."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except errors.ConfigError as error:
            click.echo(str(error), err=True)
            sys.exit(_BAD_CONFIG)
        except errors.StoreError as error:
            click.echo(f"store: {error.message}", err=True)
            sys.exit(1)

    return run


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="rejoinder")
def main() -> None:
    """Rejoinder: a stateful reverse proxy for the OpenAI Responses API."""


@main.command()
@click.option("-c", "--config", "path", type=click.Path(path_type=Path), help="The YAML file.")
@click.option("--backend", "backends", multiple=True, help="URL of a backend; repeat it for several that are alike.")
@click.option("--store", help="sqlite:///file.db or postgresql://user@host:port/db?sslmode=…")
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on. [default: 8080]")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes that share the port. [default: 1]")
@click.option("--migrate", is_flag=True, help="Bring an older PostgreSQL schema up to date first.")
@_reports_mistakes
def serve(path: Path | None, migrate: bool, **flags: Any) -> None:
    """Run the gateway; flags alone make a whole default configuration, or change what the file says."""
    data = config.read(path) if path else {}
    gateway = config.parse(_with_flags(data, flags), str(path) if path else "flags")
    blue = app.blueprint(gateway)
    processes.run(blue, migrate=migrate or gateway.store.migrate)


def _with_flags(data: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    data = dict(data)
    if flags["backends"]:
        data["backends"] = {"default": {"endpoints": list(flags["backends"])}}
    if not data.get("backends"):
        raise errors.ConfigError("name a backend: --backend http://host:8000, or 'backends' in a file given with -c")
    if flags["store"]:
        data["store"] = {**(data.get("store") or {}), "url": flags["store"]}
    if flags["host"] or flags["port"]:
        data["listeners"] = _readdressed(data.get("listeners") or [{}], flags["host"], flags["port"])
    if flags["workers"]:
        data["workers"] = flags["workers"]
    return data


def _readdressed(listeners: list[dict[str, Any]], host: str | None, port: int | None) -> list[dict[str, Any]]:
    first, *others = listeners
    old_host, _, old_port = str(first.get("address", "127.0.0.1:8080")).rpartition(":")
    return [{**first, "address": f"{_bracketed(host) or old_host}:{port or old_port}"}, *others]


def _bracketed(host: str | None) -> str | None:
    return f"[{host}]" if host and ":" in host and not host.startswith("[") else host


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
@_reports_mistakes
def check(path: Path) -> None:
    """Check a YAML file without starting anything."""
    blue = app.blueprint(config.load(path))
    for line in processes.summary(blue):
        click.echo(line)
    click.echo("ok")


@main.command()
def schema() -> None:
    """Print the JSON Schema of the YAML file, for editors."""
    click.echo(json.dumps(json_schema(), indent=2))


@main.command("reference", hidden=True)
def print_reference() -> None:
    """Print the configuration reference (docs/configuration.md is its output)."""
    click.echo(reference(filter_names()), nl=False)


@main.command()
@click.option("--store", required=True, envvar="REJOINDER_STORE", help="The store's URL; or set REJOINDER_STORE.")
@_reports_mistakes
def migrate(store: str) -> None:
    """Bring a store's schema up to date."""
    revision = asyncio.run(store_schema.migrate(store))
    click.echo(f"schema is at revision {revision}")


@main.command()
@click.option("--backend", envvar="BACKEND", help="Use this backend instead of installing and starting a vLLM.")
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True, help="The gateway's port.")
@click.option("--wait/--no-wait", default=True, help="Leave the gateway running at the end.")
def demo(backend: str | None, port: int, wait: bool) -> None:
    """Show what the gateway does, in front of a real vLLM with a small model on this machine's CPU."""
    from proxy.demo import run  # noqa: PLC0415  # the SDK it shows comes with the extra `demo` only

    sys.exit(run(backend or None, port, wait))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main(prog_name="rejoinder")
