"""Configuration: its shape, and how it is read."""

from proxy.config.reading import load, parse, read, validated
from proxy.config.shape import DEFAULT_CHAIN, Backend, Gateway, HealthCheck, Listener, Model

__all__ = [
    "DEFAULT_CHAIN",
    "Backend",
    "Gateway",
    "HealthCheck",
    "Listener",
    "Model",
    "load",
    "parse",
    "read",
    "validated",
]
