"""The query strings of the endpoints that the store answers."""

from collections.abc import Callable

import pytest

from proxy.errors import InvalidRequest
from proxy.protocol.listing import INCLUDABLE
from proxy.protocol.records import PageQuery
from proxy.server.query import ListQuery, RetrieveQuery, include_query, list_query, retrieve_query

NOTHING: frozenset[str] = frozenset()


def test_an_empty_query_means_the_defaults():
    assert list_query("") == ListQuery(PageQuery(20, "desc", None), NOTHING)
    assert retrieve_query("") == RetrieveQuery(False, None)
    assert include_query("") == NOTHING


def test_everything_a_list_takes():
    query = "limit=1&order=asc&after=a%2Fb+c&include=reasoning.encrypted_content&include%5B%5D=file_search_call.results"
    include = frozenset({"reasoning.encrypted_content", "file_search_call.results"})
    assert list_query(query) == ListQuery(PageQuery(1, "asc", "a/b c"), include)


def test_every_value_of_openais_enum_may_be_included():
    assert include_query("&".join(f"include[]={name}" for name in INCLUDABLE)) == frozenset(INCLUDABLE)


def test_everything_a_retrieval_takes():
    query = (
        "stream=true&starting_after=18446744073709551615&include_obfuscation=true&include[]=reasoning.encrypted_content"
    )
    assert retrieve_query(query) == RetrieveQuery(True, 2**64 - 1)
    assert retrieve_query("stream=false&include_obfuscation=false") == RetrieveQuery(False, None)


@pytest.mark.parametrize(
    ("parse", "query", "param", "said"),
    [
        (list_query, "x=1", "x", "Unknown query parameter: 'x'."),
        (list_query, "stream=true", "stream", "Unknown query parameter: 'stream'."),
        (retrieve_query, "limit=1", "limit", "Unknown query parameter: 'limit'."),
        (include_query, "limit=1", "limit", "Unknown query parameter: 'limit'."),
        (list_query, "limit=1&limit=1", "limit", "more than once"),
        (list_query, "limit", "limit", "no value"),
        (list_query, "limit=0", "limit", "1 to 100"),
        (list_query, "limit=101", "limit", "1 to 100"),
        (list_query, "limit=%2B1", "limit", "1 to 100"),
        (list_query, "limit=1_0", "limit", "1 to 100"),
        (list_query, "limit=%D9%A1", "limit", "1 to 100"),
        (list_query, "limit=" + "9" * 5000, "limit", "1 to 100"),
        (list_query, "order=up", "order", "'up'"),
        (list_query, "order=", "order", "no value"),
        (list_query, "after=", "after", "no value"),
        (list_query, "after=%00", "after", "no item"),
        (list_query, "include=reasoning", "include", "'reasoning'"),
        (retrieve_query, "include[]=x", "include", "'x'"),
        (include_query, "include=", "include", "''"),
        (retrieve_query, "stream=1", "stream", "'true' or 'false'"),
        (retrieve_query, "stream", "stream", "no value"),
        (retrieve_query, "include_obfuscation=maybe", "include_obfuscation", "'true' or 'false'"),
        (retrieve_query, "starting_after=1", "starting_after", "stream=true"),
        (retrieve_query, "stream=false&starting_after=1", "starting_after", "stream=true"),
        (retrieve_query, "stream=true&starting_after=-1", "starting_after", "'-1'"),
        (retrieve_query, "stream=true&starting_after=18446744073709551616", "starting_after", "sequence number"),
    ],
)
def test_anything_else_is_refused_by_name(parse: Callable[[str], object], query: str, param: str, said: str):
    with pytest.raises(InvalidRequest) as error:
        parse(query)
    assert (error.value.status, error.value.param) == (400, param)
    assert said in error.value.message
