"""Headers as pairs of bytes."""

from proxy.protocol import headers as http

HEADERS: http.Headers = (
    (b"X-Tag", b"one"),
    (b"Content-Type", b"Application/JSON; charset=utf-8"),
    (b"x-tag", b"tw\xff o"),
    (b"X-Odd", b""),
)


def test_order_case_repetition_and_odd_bytes_survive():
    assert http.end_to_end(HEADERS) == HEADERS


def test_the_first_value_counts_whatever_the_case():
    assert http.get(HEADERS, b"x-tag") == b"one"
    assert http.get(HEADERS, b"x-none") is None


def test_hop_by_hop_headers_go_no_further():
    hop = [b"Connection", b"Keep-Alive", b"Proxy-Authenticate", b"Proxy-Authorization", b"Proxy-Connection", b"TE"]
    hop += [b"Transfer-Encoding", b"UPGRADE"]
    assert http.end_to_end((*((name, b"x") for name in hop), (b"Trailer", b"x-sum"))) == ((b"Trailer", b"x-sum"),)


def test_headers_named_by_connection_go_no_further_in_any_spelling():
    headers = (
        (b"connection", b"close, X-A ,,"),
        (b"x-a", b"1"),
        (b"X-B", b"2"),
        (b"CONNECTION", b"x-b"),
        (b"X-C", b"3"),
    )
    assert http.end_to_end(headers) == ((b"X-C", b"3"),)


def test_names_can_be_left_out():
    assert http.without(HEADERS, {b"x-odd"}) == HEADERS[:3]


def test_a_block_is_what_goes_over_the_wire():
    assert http.block(HEADERS[2:]) == b"x-tag: tw\xff o\r\nX-Odd: \r\n"
    assert http.block(()) == b""


def test_the_media_type_is_without_case_and_parameters():
    assert http.media_type(HEADERS) == b"application/json"
    assert http.media_type(()) == b""


def test_json_has_kinds():
    assert http.is_json(b"application/json")
    assert http.is_json(b"application/problem+json")
    assert not http.is_json(b"text/json")
    assert not http.is_json(b"")


def test_what_headers_say_is_read_once_for_all_messages_that_bear_the_same():
    headers: http.Headers = (
        (b"Content-Length", b"5"),
        (b"content-length", b"6"),
        (b"Content-Encoding", b" GZip "),
        (b"Content-Type", b"Text/Event-Stream;x=y"),
        (b"Connection", b"x-a"),
        (b"X-A", b"1"),
    )
    said = http.read(headers)
    assert (said.media_type, said.encoding, said.length) == (b"text/event-stream", b"gzip", b"5")
    assert said.end_to_end == headers[:4]
    assert http.read(tuple((bytes(bytearray(n)), v) for n, v in headers)) is said


def test_headers_that_differ_in_one_byte_are_read_for_themselves():
    plain, spelled = (http.read(((name, b"text/plain"),)) for name in (b"Content-Type", b"content-type"))
    assert plain.end_to_end != spelled.end_to_end
    assert http.read(()) == ((), b"", None, None)
