"""The shape of the YAML file: every option, its default and its meaning."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

DEFAULT_CHAIN = (
    "owner",
    "validate",
    "response_store",
    "rehydrate",
    "mcp_tools",
    "agentic_loop",
    "repair",
    "upstream",
)


class Model(BaseModel):
    """Base of every options object: frozen, and strict about names."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)


def _http_url(url: str) -> str:
    if not re.match(r"https?://[^/?#\s]+(/[^?#\s]*)?\Z", url):
        raise ValueError("must be a URL such as http://host:8000")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"must be a URL such as http://host:8000: {error}") from None
    if "@" in parts.netloc:
        raise ValueError("must hold no user name and password: they belong under 'credentials'")
    return url


def _header_value(secret: SecretStr) -> SecretStr:
    if not re.match(r"[!-~]+\Z", secret.get_secret_value()):
        raise ValueError("must be visible ASCII characters without spaces")
    return secret


def _address(address: str) -> str:
    match = re.match(r"(\[[0-9A-Fa-f:.]+\]|[^:\s]+):(\d{1,5})\Z", address)
    if not match or not 0 < int(match[2]) <= 65535:
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:8080")
    return address


HttpUrl = Annotated[str, AfterValidator(_http_url)]
HeaderSecret = Annotated[SecretStr, AfterValidator(_header_value)]
Address = Annotated[str, AfterValidator(_address)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class TLS(Model):
    """Certificate and key of a listener."""

    cert_file: Path = Field(description="PEM file with the certificate chain.")
    key_file: Path = Field(description="PEM file with the private key.")


class Heartbeat(Model):
    """A JSON event that keeps clients from giving up on a silent stream."""

    verbatim_seconds: Seconds | None = Field(
        None, description="Silence before one is sent in a stream that is relayed untouched."
    )
    composed_seconds: Seconds | None = Field(
        15, description="Silence before one is sent in a stream that the gateway composes; null: never."
    )


class Listener(Model):
    """An address that clients connect to."""

    name: str = Field("main", description="For logs.")
    address: Address = Field("127.0.0.1:8080", description="HOST:PORT; loopback unless you say otherwise.")
    facade: Literal["openai"] = Field("openai", description="The protocol that clients speak.")
    chain: str = Field("default", description="The chain that serves its requests.")
    tls: TLS | None = Field(None, description="Serve HTTPS.")
    passthrough: tuple[str, ...] = Field(
        ("/v1/*",),
        description="Paths for the backend, untouched, where the gateway has no answer itself; `*` matches anything.",
    )
    max_body_bytes: int = Field(
        64 * 1024 * 1024, ge=1024, description="Largest request body, also after decompression."
    )
    read_timeout_seconds: Seconds = Field(60, description="How long a client may take to send its request.")
    heartbeat: Heartbeat = Field(Heartbeat(), description="Events against silence.")


class FilterEntry(BaseModel):
    """One filter of a chain: its name, and its own options beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    filter: str = Field(description="The filter's name.")

    @property
    def options(self) -> dict[str, Any]:
        """What stands beside the name."""
        return dict(self.model_extra or {})


class Timeouts(Model):
    """How long a backend may take, in seconds."""

    connect: Seconds = Field(5, description="Until a connection is made.")
    first_byte: Seconds = Field(600, description="Until the answer begins; a JSON answer begins when it is complete.")
    idle: Seconds = Field(300, description="Between two reads of one answer.")
    total: Seconds = Field(3600, description="For the whole exchange.")


class PoolOptions(Model):
    """Connections to one backend, per worker."""

    max_connections: int = Field(1000, ge=1, description="Most connections at once.")
    idle_seconds: Seconds = Field(4, description="How long an unused connection is kept (vLLM closes its own after 5).")
    wait_seconds: Seconds = Field(10, description="How long a request waits for a free connection before it gets 503.")


class HealthCheck(Model):
    """Asking endpoints whether they are well."""

    path: str = Field("/health", pattern=r"^/", description="What to GET; 2xx is well.")
    interval_seconds: Seconds = Field(10, description="How often.")


class Credentials(Model):
    """What the gateway shows to a backend."""

    api_key: HeaderSecret = Field(description="Sent as `Authorization: Bearer`. Use ${VARIABLE} or file:/path.")


class VLLM(Model):
    """A vLLM that the gateway starts beside itself and looks after."""

    model: str = Field(min_length=1, description="What `vllm serve` is told to serve.")
    args: tuple[str, ...] = Field((), description="More arguments for `vllm serve`.")
    command: tuple[str, ...] = Field(("vllm", "serve"), min_length=1, description="The command.")
    port: int = Field(8000, ge=1, le=65535, description="Where it listens, on 127.0.0.1.")
    start_timeout_seconds: Seconds = Field(1800, description="How long it may take to become healthy.")


class Backend(Model):
    """A server, or several alike, that answer `/v1/responses` without remembering anything."""

    endpoints: tuple[HttpUrl, ...] = Field((), description="URLs, used in turn.")
    vllm: VLLM | None = Field(None, description="Start this vLLM instead of naming endpoints.")
    timeouts: Timeouts = Field(Timeouts(), description="Limits in time.")
    pool: PoolOptions = Field(PoolOptions(), description="Connections.")
    health_check: HealthCheck | None = Field(
        None, description="Leave out endpoints that are not well; null: all are used."
    )
    credentials: Credentials | None = Field(None, description="The gateway's own credentials there.")
    forward_credentials: bool = Field(
        False, description="Hand the client's own Authorization, Cookie and API key headers on."
    )
    ca_file: Path | None = Field(
        None, description="PEM file of the authority that signs an https endpoint's certificate."
    )
    max_answer_bytes: int = Field(64 * 1024 * 1024, ge=1024, description="Largest JSON answer.")
    max_event_bytes: int = Field(10 * 1024 * 1024, ge=1024, description="Largest single event of a stream.")

    @model_validator(mode="after")
    def _one_kind(self) -> Backend:
        if bool(self.endpoints) == (self.vllm is not None):
            raise ValueError("name either 'endpoints' or 'vllm'")
        return self


class StoreOptions(Model):
    """Where state is kept."""

    url: SecretStr = Field(
        SecretStr("sqlite:///rejoinder.db"),
        description="sqlite:///file.db, sqlite:////absolute/file.db or postgresql://user@host:port/db?sslmode=…",
    )
    pool_size: int = Field(10, ge=1, le=1000, description="Connections to the database, per worker.")
    acquire_timeout_seconds: Seconds = Field(5, description="How long an operation waits for a connection or a lock.")
    statement_timeout_seconds: Seconds = Field(10, description="How long one statement may take.")
    prepared_statements: bool = Field(True, description="false behind a pooler such as PgBouncer in transaction mode.")
    migrate: bool = Field(False, description="Bring an older PostgreSQL schema up to date at start (SQLite always is).")
    sweep_seconds: Seconds = Field(60, description="How often expired responses are looked for.")
    sweep_batch: int = Field(100, ge=1, le=10_000, description="Most responses removed at a time.")


class Admin(Model):
    """A listener for /healthz, /readyz and /metrics alone."""

    address: Address = Field("127.0.0.1:9090", description="HOST:PORT.")


class Telemetry(Model):
    """Logs."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe line that is logged."
    )
    log_format: Literal["text", "json"] = Field("text", description="Plain lines, or one JSON object a line.")
    access_log: bool = Field(True, description="One line for each request, at most a tenth of a second late.")


class Gateway(Model):
    """The whole file."""

    listeners: tuple[Listener, ...] = Field((Listener(),), min_length=1, description="Where clients connect.")
    chains: dict[str, tuple[FilterEntry, ...]] = Field(
        default_factory=dict,
        description="Filters by chain name, outermost first; `default` is there even if you do not write it.",
    )
    backends: dict[str, Backend] = Field(min_length=1, description="Backends by name.")
    store: StoreOptions = Field(StoreOptions(), description="Where state is kept.")
    admin: Admin | None = Field(None, description="Serve health and metrics here; null: on the first listener.")
    telemetry: Telemetry = Field(Telemetry(), description="Logs.")
    workers: int = Field(1, ge=1, le=256, description="Processes that share the listeners.")

    def chain(self, name: str) -> tuple[FilterEntry, ...] | None:
        """The entries of a chain; `default` exists even where nobody wrote it."""
        written = self.chains.get(name)
        if written is None and name == "default":
            return tuple(FilterEntry(filter=each) for each in DEFAULT_CHAIN)
        return written
