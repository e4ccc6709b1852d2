"""Tools that the gateway runs itself: one file for each kind.

A module `proxy/tools/NAME.py` holds `Config(Model)`, a class of the same name in capitals (`WebSearch` in
`web_search.py`) made with `(config, kit)`, and nothing that knows of rounds or streams. A turn's declaration
(`{"type": "web_search", ...}`) becomes a `Hosted`: the functions that the model is shown instead, and what running one
of them means. What the client is shown while it runs are the items and events that `Hosted` returns.
"""

from __future__ import annotations

from proxy.protocol.hosting import (
    Finished,
    Function,
    Hosted,
    HostedCall,
    Kit,
    LocalEvent,
    Opening,
    Request,
    Started,
    Tool,
)

__all__ = [
    "Finished",
    "Function",
    "Hosted",
    "HostedCall",
    "Kit",
    "LocalEvent",
    "Opening",
    "Request",
    "Started",
    "Tool",
]
