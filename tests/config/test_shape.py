"""Every option has a meaning; values that cannot work are refused."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from proxy.config import DEFAULT_CHAIN, Gateway
from proxy.config.shape import Address, HttpUrl
from proxy.loader import END, filter_names


def models(kind: Any) -> set[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {kind}.union(*(models(info.annotation) for info in kind.model_fields.values()))
    return set().union(*(models(inner) for inner in get_args(kind)))


@pytest.mark.parametrize("model", sorted(models(Gateway), key=lambda model: model.__name__))
def test_every_option_says_what_it_means(model: type[BaseModel]):
    assert model.__doc__
    for name, info in model.model_fields.items():
        assert info.description, name


@pytest.mark.parametrize("model", sorted(models(Gateway), key=lambda model: model.__name__))
def test_options_do_not_change(model: type[BaseModel]):
    assert model.model_config["frozen"]


def test_the_default_chain_is_made_of_filters_that_exist():
    assert DEFAULT_CHAIN[-1] == END
    assert set(DEFAULT_CHAIN[:-1]) <= set(filter_names())


def test_the_default_chain_is_there_unless_it_is_written():
    backends = {"m": {"endpoints": ["http://a"]}}
    silent = Gateway.model_validate({"backends": backends})
    assert [entry.filter for entry in silent.chain("default") or ()] == list(DEFAULT_CHAIN)
    assert silent.chain("other") is None
    written = Gateway.model_validate(
        {"backends": backends, "chains": {"default": [{"filter": "upstream", "backend": "m"}]}}
    )
    (entry,) = written.chain("default") or ()
    assert (entry.filter, entry.options) == ("upstream", {"backend": "m"})


@pytest.mark.parametrize("url", ["http://a", "https://a:8000", "http://[::1]:8000/v1", "http://h/x/"])
def test_a_backends_url(url: str):
    assert TypeAdapter(HttpUrl).validate_python(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a",
        "a:8000",
        "ftp://a",
        "http://",
        "http://a?x=1",
        "http://a/#x",
        "http://a b",
        "http://a\n",
        "http://u:p@h",
    ],
)
def test_what_is_no_backends_url(url: str):
    with pytest.raises(ValidationError):
        TypeAdapter(HttpUrl).validate_python(url)


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "0.0.0.0:1", "[::1]:65535", "localhost:80"])
def test_an_address(address: str):
    assert TypeAdapter(Address).validate_python(address) == address


@pytest.mark.parametrize("address", ["", ":80", "a", "a:", "a:x", "a:65536", "::1:80", "a:80\n", "a b:80"])
def test_what_is_no_address(address: str):
    with pytest.raises(ValidationError):
        TypeAdapter(Address).validate_python(address)


@pytest.mark.parametrize("backend", [{}, {"endpoints": ["http://a"], "vllm": {"model": "m"}}, {"endpoints": []}])
def test_a_backend_is_either_endpoints_or_a_vllm(backend: dict[str, Any]):
    with pytest.raises(ValidationError, match="either 'endpoints' or 'vllm'"):
        Gateway.model_validate({"backends": {"m": backend}})
