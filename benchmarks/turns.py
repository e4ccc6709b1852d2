"""Measures whole turns: straight to a backend, through our gateway, and through any other before the same backend.

    python -m benchmarks.turns [options] [NAME=http://host:port[#pid] …]

The backend answers at once from memory. Ours runs over a PostgreSQL that is brought up for the run, fsync on, or over
SQLite. Another gateway must be started by the user, before the backend whose port `--backend-port` fixes; it may use
the database of its name on the same PostgreSQL, whose port `--postgres-port` fixes. Figures are good only as ratios
within one run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.contestants import DIRECT, OURS, Contestant, Stores, backend, other, ours, wait_until_it_serves
from benchmarks.report import Report
from benchmarks.works import Figures, Sizes, Work, added, works
from proxy.demo.process import free_port

FULL = Sizes(seconds=6.0, streams=200, tokens=200, turns=300)
QUICK = Sizes(seconds=2.0, streams=50, tokens=100, turns=60)


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("others", nargs="*", type=other, metavar="NAME=URL[#PID]", help="another gateway")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--only", default="", help="of json,sse,paced,first,chain and of the contestants' names")
    parser.add_argument("--workers", type=int, default=1, help="of our gateway")
    parser.add_argument("--store", choices=["postgresql", "sqlite"], help="PostgreSQL where its programs are")
    parser.add_argument("--backend-port", type=int, default=0)
    parser.add_argument("--postgres-port", type=int, default=0)
    parser.add_argument("--wait", type=float, default=60.0, help="seconds for the others to serve")
    for name, default in asdict(FULL).items():
        parser.add_argument(f"--{name}", type=type(default), help=f"{default}; quick: {asdict(QUICK)[name]}")
    return parser.parse_args()


def sizes(options: argparse.Namespace) -> Sizes:
    asked = {name: value for name in asdict(FULL) if (value := getattr(options, name)) is not None}
    return replace(QUICK if options.quick else FULL, **asked)


def contestants(stack: ExitStack, options: argparse.Namespace, folder: Path) -> tuple[Stores, list[Contestant]]:
    """Brings up what is ours, and waits for the others."""
    before = stack.enter_context(backend(options.backend_port or free_port(), folder))
    stores = Stores(stack, options.store or "", options.postgres_port or free_port())
    flags = ["--store", stores.make(OURS), "--workers", str(options.workers)]
    mine = stack.enter_context(ours(before, free_port(), lambda: stores.disk(OURS), flags, folder))
    wait_until_it_serves(mine, before, options.wait)
    say(f"backend {before.url}, ours {mine.url}, {options.workers} workers, {stores.kind}")
    return stores, [before, mine, *(meet(each, before, stores, options.wait) for each in options.others)]


def meet(one: Contestant, before: Contestant, stores: Stores, patience: float) -> Contestant:
    """Another gateway, as soon as it serves."""
    if stores.kind == "sqlite":
        say(f"waiting for {one.name} at {one.url}")
    else:
        say(f"waiting for {one.name} at {one.url}, which may store in {stores.make(one.name)}")
    wait_until_it_serves(one, before, patience)
    return one if stores.kind == "sqlite" else replace(one, disk=lambda: stores.disk(one.name))


def chosen(only: str, all_works: list[Work], all_who: list[Contestant]) -> tuple[list[Work], list[Contestant]]:
    """What `--only` leaves: of a kind that it does not mention, everything."""
    named = set(filter(None, only.split(",")))
    kinds, names = {each.kind for each in all_works}, {each.name for each in all_who}
    if unknown := named - kinds - names:
        raise SystemExit(f"--only: unknown: {', '.join(sorted(unknown))}")
    works_left = [each for each in all_works if each.kind in (named & kinds or kinds)]
    return works_left, [each for each in all_who if each.name in (named & names or names)]


def measure(report: Report, todo: list[Work], who: list[Contestant], before: Contestant) -> None:
    """Work by work, so that what is compared ran at nearly the same time."""
    for work in todo:
        direct: Figures | None = None
        for one in who:
            say(f"{work.what}: {one.name}")
            figures, problem = work.measure(one, before)
            report.add(work.what, one.name, figures)
            if problem:
                report.errors.append(f"{work.what}: {one.name}: {problem}")
            if one.name == DIRECT:
                direct = figures
            elif work.kind == "first" and direct:
                report.add(work.what, one.name, added(figures, direct))


def main() -> None:
    options = parse()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        stores, everybody = contestants(stack, options, folder)
        todo, who = chosen(options.only, works(sizes(options)), everybody)
        about = {"store": stores.kind, "workers": options.workers, "cpus": os.cpu_count(), **asdict(sizes(options))}
        report = Report([each.name for each in who], about)
        measure(report, todo, who, everybody[0])
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=1, ensure_ascii=False))
    sys.stdout.write(report.table() + "\n")
    if report.errors:
        raise SystemExit("\n".join(report.errors))


if __name__ == "__main__":
    main()
