"""The profile of the gateway under load, and how it reads a flame graph."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.flames import frames, self_samples, top
from benchmarks.profile import missing_right

ROOT = Path(__file__).parents[1]


def box(name: str, row: int, x: int, width: int) -> str:
    title = f"<title>{name} ({width} samples, 1.00%)</title>"
    return f'<g>{title}<rect x="1%" y="{row}" width="2%" height="15" fill="red" fg:x="{x}" fg:w="{width}"/></g>'


GRAPH = "<svg>" + "".join([
    box("b (two.py:2)", 68, 6, 4),
    box("all", 36, 0, 10),
    box("a (one.py:1)", 52, 0, 6),
    box("&lt;lambda&gt; (one.py:3)", 68, 1, 2),
    box("b (two.py:2)", 52, 6, 4),
    box("b (two.py:2)", 68, 3, 3),
]) + "</svg>"  # fmt: skip


def test_a_function_has_the_samples_in_which_it_called_nothing():
    assert self_samples(frames(GRAPH)) == {"all": 0, "a (one.py:1)": 1, "b (two.py:2)": 7, "<lambda> (one.py:3)": 2}


def test_the_functions_at_the_top_are_those_with_most_samples_of_their_own():
    assert top(GRAPH, 2) == [(70.0, "b (two.py:2)"), (20.0, "<lambda> (one.py:3)")]
    assert len(top(GRAPH, 9)) == 3


def test_the_error_names_what_may_be_missing():
    assert "What is missing: " in missing_right("Permission Denied")


def test_a_profile_is_written_or_the_missing_right_is_named(tmp_path: Path):
    output = tmp_path / "new" / "profile.svg"
    flags = ["json", "--unstored", "--store", "sqlite", "--seconds", "1", "--output", str(output)]
    command = [sys.executable, "-m", "benchmarks.profile", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        assert "What is missing: " in done.stderr
    else:
        assert output.read_text().rstrip().endswith("</svg>")
        assert "proxy/" in done.stdout
