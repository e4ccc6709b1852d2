"""Figures as a table with ratios, and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.contestants import OURS
from benchmarks.works import Figures


@dataclass
class Report:
    """What was measured: by work and figure, of each contestant."""

    contestants: list[str]
    about: dict[str, Any]
    rows: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def add(self, what: str, who: str, figures: Figures) -> None:
        for name, value in figures.items():
            if value is not None:
                self.rows.setdefault((what, name), {})[who] = value

    def ratios(self, values: dict[str, float]) -> dict[str, float]:
        """Ours by each other's."""
        if OURS not in values:
            return {}
        return {f"{OURS}/{who}": values[OURS] / each for who, each in values.items() if who != OURS and each}

    def as_json(self) -> dict[str, Any]:
        rows = [
            {"what": what, "figure": figure, "values": values, "ratios": self.ratios(values)}
            for (what, figure), values in self.rows.items()
        ]
        return {"about": self.about, "contestants": self.contestants, "rows": rows, "errors": self.errors}

    def table(self) -> str:
        others = [f"{OURS}/{who}" for who in self.contestants if who != OURS and OURS in self.contestants]
        lines = [["Work", "Figure", *self.contestants, *others]]
        for (what, figure), values in self.rows.items():
            ratios = self.ratios(values)
            cells = [_number(values.get(who)) for who in self.contestants]
            lines.append([what, figure, *cells, *(f"{ratios[each]:.2f}" if each in ratios else "" for each in others)])
        return _aligned(lines)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _aligned(lines: list[list[str]]) -> str:
    """A table of Markdown: words to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    ruled = [lines[0], [(":" if n < 2 else "-") + "-" * (width - 2) + ("-" if n < 2 else ":")
                        for n, width in enumerate(widths)], *lines[1:]]  # fmt: skip
    return "\n".join(
        "| " + " | ".join(_cell(each, n, widths[n]) for n, each in enumerate(line)) + " |" for line in ruled
    )


def _cell(text: str, column: int, width: int) -> str:
    return text.ljust(width) if column < 2 else text.rjust(width)
