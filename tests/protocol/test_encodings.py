"""Content encodings undone, never beyond a limit."""

from __future__ import annotations

import gzip
import zlib

import pytest
import zstandard

from proxy.protocol.encodings import BadEncoding, TooLong, UnknownEncoding, decoded

PLAIN = b'{"input": "hi", "x": 1.50}'
PACKED = {b"gzip": gzip.compress(PLAIN), b"x-gzip": gzip.compress(PLAIN), b"zstd": zstandard.compress(PLAIN)}


@pytest.mark.parametrize("encoding", PACKED)
def test_what_was_packed_comes_out_again(encoding: bytes):
    assert decoded(PACKED[encoding], encoding, len(PLAIN)) == PLAIN


@pytest.mark.parametrize("encoding", [b"identity", b""])
def test_what_was_not_packed_is_not_touched(encoding: bytes):
    assert decoded(PLAIN, encoding, 1) is PLAIN


@pytest.mark.parametrize("encoding", [*PACKED, b"br"])
def test_nothing_is_nothing_in_every_encoding(encoding: bytes):
    assert decoded(b"", encoding, 1) == b""


@pytest.mark.parametrize("encoding", [b"br", b"deflate", b"gzip, zstd", b"GZIP"])
def test_other_encodings_are_not_undone(encoding: bytes):
    with pytest.raises(UnknownEncoding):
        decoded(PLAIN, encoding, 100)


@pytest.mark.parametrize("encoding", PACKED)
def test_one_byte_beyond_the_limit_is_too_long(encoding: bytes):
    with pytest.raises(TooLong):
        decoded(PACKED[encoding], encoding, len(PLAIN) - 1)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_bomb_costs_no_more_than_the_limit(pack: object):
    encoding = b"gzip" if pack is gzip.compress else b"zstd"
    with pytest.raises(TooLong):
        decoded(pack(b"\0" * 200_000_000), encoding, 1000)  # type: ignore[operator]


@pytest.mark.parametrize("encoding", PACKED)
def test_a_body_cut_anywhere_is_refused(encoding: bytes):
    for size in range(1, len(PACKED[encoding])):
        with pytest.raises(BadEncoding):
            decoded(PACKED[encoding][:size], encoding, 1000)


@pytest.mark.parametrize("encoding", PACKED)
def test_bytes_that_were_never_packed_are_refused(encoding: bytes):
    with pytest.raises(BadEncoding):
        decoded(PLAIN, encoding, 1000)


def test_zlibs_own_format_is_not_gzip():
    with pytest.raises(BadEncoding):
        decoded(zlib.compress(PLAIN), b"gzip", 1000)
