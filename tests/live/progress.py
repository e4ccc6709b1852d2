"""Lines for the person who waits."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Past pytest's capture: an installation is long, and silence would look like a hang."""
    print(line, file=sys.__stderr__, flush=True)
