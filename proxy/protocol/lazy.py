"""A property that is computed when it is first asked for, and kept.

As `functools.cached_property`, without the lock that it takes before Python 3.12: what passes through here belongs to
one task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801  # used as a decorator
    """Replaces itself, in the instance's `__dict__`, by the value."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any]) -> T: ...
    def __get__(self, instance: object | None, owner: type[Any]) -> lazy[T] | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
