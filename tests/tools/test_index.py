"""The full-text index over a folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import ConfigError
from proxy.tools import _index
from proxy.tools._index import FileIndex, passages


async def found(folder: Path, query: str, limit: int = 10) -> list[str]:
    index = FileIndex(folder)
    await index.open()
    try:
        return [passage.filename for passage in await index.search(query, limit)]
    finally:
        await index.close()


async def test_the_best_passages_come_first(tmp_path: Path):
    (tmp_path / "a.md").write_text("The cellar.\n\nWine and more wine in the cellar.\n")
    (tmp_path / "b.txt").write_text("Wine. " + "Something else entirely. " * 20)
    index = FileIndex(tmp_path)
    assert await index.open() == 2
    first, second = await index.search("wine cellar", 10)
    assert (first.filename, second.filename) == ("a.md", "b.txt")
    assert 1 > first.score >= second.score >= 0
    assert [each.filename for each in await index.search("wine cellar", 1)] == ["a.md"]
    await index.close()


async def test_only_text_is_indexed_in_every_depth(tmp_path: Path):
    deep = tmp_path / "x" / "y"
    deep.mkdir(parents=True)
    for name in ("a.txt", "b.md", "c.rst", "d.TXT", "e.markdown", "f.text"):
        (deep / name).write_text("plum")
    for name in ("g.bin", "h", "i.html"):
        (deep / name).write_text("plum")
    (tmp_path / "folder.txt").mkdir()
    assert sorted(await found(tmp_path, "plum")) == [
        f"x/y/{n}" for n in ("a.txt", "b.md", "c.rst", "d.TXT", "e.markdown", "f.text")
    ]


@pytest.mark.parametrize(
    "query",
    [
        '"',
        "'",
        "plum AND",
        "plum OR",
        "NOT plum",
        "plum NEAR/2",
        "text:plum",
        "(plum",
        "plum*",
        "^plum",
        "-plum",
        "plum\0",
    ],
)
async def test_nothing_that_a_model_writes_is_an_operator(tmp_path: Path, query: str):
    (tmp_path / "a.txt").write_text("a plum tree")
    assert await found(tmp_path, query) == (["a.txt"] if "plum" in query else [])


@pytest.mark.parametrize("query", ["", " ", "?!", "-"])
async def test_no_word_finds_nothing(tmp_path: Path, query: str):
    (tmp_path / "a.txt").write_text("plum")
    assert await found(tmp_path, query) == []


async def test_words_are_found_in_their_forms_and_in_any_script(tmp_path: Path):
    (tmp_path / "a.txt").write_text("The cats were running über die Brücke по мосту")
    for query in ("cat", "runs", "BRÜCKE", "мосту", "x" * 10_000 + " cat"):
        assert await found(tmp_path, query) == ["a.txt"]


async def test_only_so_many_words_count(tmp_path: Path):
    (tmp_path / "a.txt").write_text("plum")
    assert await found(tmp_path, "x " * 64 + "plum") == []


async def test_a_file_has_an_id_a_title_and_perhaps_an_address(tmp_path: Path):
    (tmp_path / "page.md").write_text("url: https://sky.example/\n# The Sky \n\nIt is blue plum.\n")
    (tmp_path / "plain.txt").write_text("First line plum\nsecond\n")
    (tmp_path / "later.txt").write_text("plum\nurl: https://late.example/\n")
    index = FileIndex(tmp_path)
    await index.open()
    by_name = {each.filename: each for each in await index.search("plum", 10)}
    page, plain = by_name["page.md"], by_name["plain.txt"]
    assert (page.title, page.url) == ("The Sky", "https://sky.example/")
    assert "url:" not in page.text
    assert (plain.title, plain.url) == ("First line plum", None)
    assert by_name["later.txt"].url is None
    assert len({each.file_id for each in by_name.values()}) == 3
    assert page.file_id.startswith("file-")
    await index.close()
    again = FileIndex(tmp_path)
    await again.open()
    assert {each.filename: each.file_id for each in await again.search("plum", 10)}["page.md"] == page.file_id
    await again.close()


async def test_an_empty_folder_and_empty_files_are_fine(tmp_path: Path):
    assert await found(tmp_path, "x") == []
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe plum")
    assert await found(tmp_path, "plum") == ["b.txt"]


@pytest.mark.parametrize("name", ["nowhere", "a.txt"])
async def test_a_folder_that_is_none_is_a_mistake_of_the_configuration(tmp_path: Path, name: str):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ConfigError, match=name):
        await FileIndex(tmp_path / name).open()


async def test_a_file_that_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_index, "_MAX_FILE", 10)
    (tmp_path / "big.txt").write_text("x" * 11)
    with pytest.raises(ConfigError, match=r"big\.txt"):
        await FileIndex(tmp_path).open()


async def test_a_mounted_configmap_has_each_file_once(tmp_path: Path):
    version = tmp_path / "..2026_12_01"
    version.mkdir()
    (version / "a.md").write_text("plum")
    (tmp_path / "..data").symlink_to(version)
    (tmp_path / "a.md").symlink_to(tmp_path / "..data" / "a.md")
    (tmp_path / "gone.md").symlink_to(tmp_path / "nowhere.md")
    (tmp_path / ".hidden.md").write_text("plum")
    assert await found(tmp_path, "plum") == ["a.md"]


async def test_searches_run_side_by_side(tmp_path: Path):
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(f"plum n{number}")
    index = FileIndex(tmp_path)
    await index.open()
    results = await asyncio.gather(*(index.search(f"n{number}", 1) for number in range(20)))
    assert [[each.filename for each in some] for some in results] == [[f"{number}.txt"] for number in range(20)]
    await index.close()
    assert await index.search("plum", 1) == (), "a closed index finds nothing"
    await index.close()


@given(st.text(st.sampled_from("ab \n#"), max_size=8000))
def test_passages_lose_no_word(text: str):
    parts = list(passages(text))
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(part.strip() for part in parts)
    assert all(len(part) <= 2 * _index._PASSAGE for part in parts)


def test_a_paragraph_without_end_is_cut():
    assert [len(part) for part in passages("x" * 10_000)] == [2400, 2400, 2400, 2400, 400]
