"""The shape of the source tree, which no linter sees."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(path.relative_to(ROOT) for path in (ROOT / "proxy").rglob("*.py"))
MIRRORED = [
    path
    for path in MODULES
    if path.parts[1] in ("protocol", "filters", "facades", "config") and path.name != "__init__.py"
]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_no_file_is_longer_than_400_lines(path: Path):
    assert len((ROOT / path).read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", MIRRORED, ids=str)
def test_a_module_has_a_test_file_in_the_same_place(path: Path):
    mirror = ROOT / "tests" / path.relative_to("proxy").with_name(f"test_{path.name}")
    assert mirror.exists(), f"write {mirror.relative_to(ROOT)}"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_says_what_it_is(path: Path):
    text = (ROOT / path).read_text()
    assert not text or text.startswith('"""')
