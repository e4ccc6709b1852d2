"""The pages say what is so: files, commands, options, fields and links are looked up."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from proxy import app, config
from proxy.__main__ import main
from proxy.loader import filter_names
from proxy.protocol.turn import Draft, Turn
from proxy.reference import reference
from tests.docs import errors
from tests.gateways import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

BLOCKS = [
    (page, language, text)
    for page in PAGES
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


# Generated pages


def test_the_configuration_page_is_what_the_models_say():
    assert (ROOT / "docs/configuration.md").read_text() == reference(filter_names()), "run: make docs"


def test_the_errors_page_is_what_the_classes_say():
    assert (ROOT / "docs/errors.md").read_text() == errors.page(), "run: make docs"


# Blocks and commands


@pytest.mark.parametrize("text", [text for _, language, text in BLOCKS if language == "yaml"])
def test_every_yaml_block_is_a_valid_configuration(text: str):
    app.blueprint(config.parse(yaml.safe_load(text), "block"))


def test_the_readme_has_a_yaml_of_about_twenty_lines():
    (text,) = [text for page, language, text in BLOCKS if page.name == "README.md" and language == "yaml"]
    assert 18 <= len(text.splitlines()) <= 22


@pytest.mark.parametrize("text", [text for page, language, text in BLOCKS if language == "python"])
def test_every_python_block_compiles(text: str):
    compile(text, "block", "exec")


def spoken(page: Path, program: str) -> list[str]:
    """The uses of a program in a page's blocks and in its code words."""
    found = re.findall(rf"^{program} .*$", page.read_text(), re.MULTILINE)
    return found + re.findall(rf"`({program} [^`\n]*)`", page.read_text())


@every_page
def test_every_command_of_ours_exists_with_its_options(page: Path):
    assert isinstance(main, click.Group)
    for line in spoken(page, "rejoinder"):
        _, name, *words = line.split()
        assert name in main.commands, line
        known = {option for parameter in main.commands[name].params for option in parameter.opts}
        assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known, line


@every_page
def test_every_make_target_exists(page: Path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in spoken(page, "make"):
        assert line.split()[1] in targets, line


# Names


@every_page
def test_every_link_leads_somewhere(page: Path):
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link.partition("#")[0]).exists(), link


@every_page
def test_every_module_that_is_named_exists(page: Path):
    packages = "|".join(path.name for path in (ROOT / "proxy").iterdir() if path.is_dir())
    for name in re.findall(rf"`((?:{packages})/\w*)`", page.read_text()):
        assert (ROOT / "proxy" / name).is_dir() or (ROOT / "proxy" / f"{name}.py").exists(), name


@every_page
def test_no_page_knows_the_machine_it_was_written_on(page: Path):
    for word in ("/work/", "/root", "/tmp/", "/opt/", "/home/", "pypi", "index-url", "pythonhosted"):
        assert word not in page.read_text().lower().replace("/opt/rejoinder", ""), word


def test_no_lock_names_a_registry():
    for lock in ("requirements.lock", "requirements-dev.lock"):
        lines = (ROOT / lock).read_text().splitlines()
        assert all(re.fullmatch(r"# .*|[a-z0-9-]+==\S+", line) for line in lines), lock


# Tables


def rows(page: str, *columns: int) -> list[tuple[str, ...]]:
    """These cells of every table row of a page."""
    lines = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [tuple(row[column] for column in columns) for row in cells if len(row) > max(columns)]


@pytest.mark.parametrize("record", [Turn, Draft])
def test_the_terms_say_who_sets_and_who_uses_each_field(record: type):
    section = (
        (ROOT / "docs/terms.md").read_text().partition(f"| Field of `{record.__name__}` |")[2].partition("\n\n")[0]
    )
    told = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE))
    assert list(told) == [field.name for field in dataclasses.fields(record)]
    for field, text in told.items():
        for module in re.findall(r"`(\w+/\w+)`", text):
            assert re.search(rf"\b{field}\b", (ROOT / "proxy" / f"{module}.py").read_text()), (field, module)


def named(requirements: list[str]) -> list[str]:
    return [re.split(r"[\[<>=~!; ]", requirement)[0] for requirement in requirements]


def test_every_dependency_has_its_line():
    extras = PROJECT["optional-dependencies"]
    listed = rows("docs/dependencies.md", 0)
    wanted = [*named(PROJECT["dependencies"]), *named(extras["dev"])]
    assert sorted(row[0] for row in listed if row[0] in wanted) == sorted(wanted)
    pairs = rows("docs/dependencies.md", 0, 1)
    for extra in set(extras) - {"dev"}:
        for name in named(extras[extra]):
            assert (extra, name) in pairs


def test_no_line_is_about_a_package_that_is_not_used():
    known = {*named(PROJECT["dependencies"]), *PROJECT["optional-dependencies"]}
    known.update(*(named(requirements) for requirements in PROJECT["optional-dependencies"].values()))
    assert {row[0] for row in rows("docs/dependencies.md", 0)} - {"Package", "Extra", "---"} <= known


def test_the_locks_pin_every_dependency():
    for lock, extras in (("requirements.lock", []), ("requirements-dev.lock", ["dev", "demo"])):
        pinned = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / lock).read_text(), re.MULTILINE))
        requirements = [
            *PROJECT["dependencies"],
            *(one for extra in extras for one in PROJECT["optional-dependencies"][extra]),
        ]
        assert set(named(requirements)) <= pinned, lock
