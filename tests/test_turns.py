"""The benchmark of whole turns runs to its end, and leaves no figure out. What the figures are is not looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contestants import other
from benchmarks.report import Report

ROOT = Path(__file__).parents[1]
TINY = ["--seconds", "0.3", "--streams", "4", "--tokens", "3", "--turns", "4", "--store", "sqlite"]
BURST = {"turns per second ↑", "turn p50, ms ↓", "turn p99, ms ↓"}
FIRST = {"first event p50, ms ↓", "first event p99, ms ↓"}
FIGURES = {
    "4 paced streams, stored": {*FIRST, "CPU per event, µs ↓", "memory per stream, KiB ↓"},
    "4 paced streams, unstored": {*FIRST, "CPU per event, µs ↓"},
    **{
        f"first event at 4 streams, {how}": {"p50, ms ↓", "p99, ms ↓", "added p50, ms ↓", "added p99, ms ↓"}
        for how in ("stored", "unstored")
    },
    "chain of 4 turns": {
        "first 2 turns, ms ↓",
        "last 2 turns, ms ↓",
        "the early body straight, ms",
        "the late body straight, ms",
        "last / first ↓",
        "last / first, less straight ↓",
        "late body, KiB",
        "disk per turn, KiB ↓",
    },
    **{f"{form} burst, {how}": BURST for form in ("JSON", "SSE") for how in ("stored", "unstored")},
}


def run(folder: Path, *args: str) -> Any:
    file = folder / "figures.json"
    command = [sys.executable, "-m", "benchmarks.turns", *TINY, "--json", str(file), *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("| Work")
    return json.loads(file.read_text())


def test_every_figure_of_ours_is_there_and_no_turn_failed(tmp_path: Path):
    told = run(tmp_path)
    assert told["errors"] == []
    found: dict[str, set[str]] = {}
    for row in told["rows"]:
        if "ours" in row["values"]:
            found.setdefault(row["what"], set()).add(row["figure"])
    assert found == FIGURES
    bursts = [row for row in told["rows"] if row["figure"] == "turns per second ↑"]
    assert all(set(row["ratios"]) == {"ours/direct"} for row in bursts)


def test_only_what_was_asked_for_is_measured(tmp_path: Path):
    told = run(tmp_path, "--only", "json,direct")
    assert {row["what"] for row in told["rows"]} == {"JSON burst, stored", "JSON burst, unstored"}
    assert all(set(row["values"]) == {"direct"} for row in told["rows"])


def test_a_contestant_is_a_name_a_url_and_perhaps_a_process():
    assert (other("x=http://h:1/v1").url, other("x=http://h:1").pid) == ("http://h:1/v1", None)
    assert (other("x=http://h:1#12").url, other("x=http://h:1#12").pid) == ("http://h:1", 12)


@pytest.mark.parametrize("text", ["http://h:1", "x=h:1", "x=http://h#y", "ours=http://h:1", "=http://h:1"])
def test_what_is_no_contestant_is_refused(text: str):
    with pytest.raises(ArgumentTypeError, match="is not name=http"):
        other(text)


def test_ratios_are_ours_by_each_other():
    report = Report(["direct", "ours", "x"], {})
    report.add("burst", "direct", {"turns": 8.0})
    report.add("burst", "ours", {"turns": 4.0, "cpu": 2.0})
    report.add("burst", "x", {"turns": 2.0, "cpu": None})
    rows = [(row["figure"], row["ratios"]) for row in report.as_json()["rows"]]
    assert rows == [("turns", {"ours/direct": 0.5, "ours/x": 2.0}), ("cpu", {})]
    assert report.table().splitlines() == [
        "| Work  | Figure | direct | ours | x | ours/direct | ours/x |",
        "| :---- | :----- | -----: | ---: | -: | ----------: | -----: |",
        "| burst | turns  |      8 |    4 | 2 |        0.50 |   2.00 |",
        "| burst | cpu    |        |    2 |   |             |        |",
    ]
