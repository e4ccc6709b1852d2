"""A filter's name in the YAML is its module's name; the class in it is the same name in capitals.

A dotted name is taken as a module of somebody else's: `acme.filters.audit` is the class `Audit` of that module.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from proxy.config import Model, validated
from proxy.config.shape import FilterEntry
from proxy.errors import ConfigError

PACKAGE = "proxy.filters"
TOOLS = "proxy.tools"
END = "upstream"  # the last link of every chain: not a filter, but the backend itself


class EndConfig(Model):
    """Options of the chain's last entry."""

    backend: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One entry of a chain, checked, not yet built."""

    name: str
    config: Model
    factory: Any
    after: frozenset[str]
    needs: frozenset[str] = frozenset()


def filter_names() -> list[str]:
    """The filters that come with the gateway."""
    package = importlib.import_module(PACKAGE)
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def plan(entry: FilterEntry, where: str) -> Plan:
    """Finds the filter and checks its options. Raises `ConfigError`."""
    if entry.filter == END:
        return Plan(END, validated(EndConfig, entry.options, where), None, frozenset())
    module = _module(entry.filter, where)
    name = entry.filter.rpartition(".")[2]
    factory = getattr(module, class_name(name), None)
    if factory is None:
        raise ConfigError(f"{where}.filter: the module {module.__name__} has no class {class_name(name)}")
    config = validated(config_of(module), entry.options, where)
    after, needs = (frozenset(getattr(module, rule, ())) for rule in ("AFTER", "NEEDS"))
    return Plan(name, config, factory, after, needs)


def tool(name: str, options: Any, where: str, kit: Any) -> Any:
    """A hosted tool by its name. Raises `ConfigError`."""
    package = importlib.import_module(TOOLS)
    known = sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))
    if name not in known and not _foreign(name):
        raise ConfigError(f"{where}: '{name}': unknown tool; known: {', '.join(known)}")
    module = _imported(name if "." in name else f"{TOOLS}.{name}", f"{where}.{name}")
    config = validated(config_of(module), options, f"{where}.{name}")
    return getattr(module, class_name(name.rpartition(".")[2]))(config, kit)


def config_of(module: ModuleType) -> type[Model]:
    """The options class of a filter's module."""
    config: type[Model] = module.Config
    return config


def class_name(name: str) -> str:
    """`response_store` -> `ResponseStore`."""
    return "".join(part.capitalize() for part in name.split("_"))


def _module(name: str, where: str) -> ModuleType:
    full = name if "." in name else f"{PACKAGE}.{name}"
    if not _foreign(name) and name not in filter_names():
        raise ConfigError(f"{where}.filter: '{name}': unknown filter; known: {', '.join([*filter_names(), END])}")
    return _imported(full, f"{where}.filter")


def _foreign(name: str) -> bool:
    """Whether a name is that of a module of somebody else's: dotted, and each part an identifier."""
    return "." in name and all(part.isidentifier() for part in name.split("."))


def _imported(module: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{where}: '{module}' cannot be imported: {error}") from error
