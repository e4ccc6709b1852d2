"""Profiles our gateway under a load: writes a flame graph, and prints which functions use the time themselves.

    python -m benchmarks.profile [json|sse|paced] [--unstored] [--seconds 10] [--output build/profile.svg]

json and sse are bursts over 16 connections, paced is 200 streams with an event every 20 ms. py-spy takes the samples;
it must be allowed to read the gateway's memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.contestants import OURS, Contestant, Stores, backend, ours
from benchmarks.flames import top
from benchmarks.load import Job
from benchmarks.processes import ROOT, cpu_seconds
from benchmarks.works import BURST_CONNECTIONS, GAP
from proxy.demo.process import free_port

WARM = 1.0  # seconds of load before the first sample
_PTRACE = 1 << 19  # CAP_SYS_PTRACE
_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", nargs="?", choices=["json", "sse", "paced"], default="sse")
    parser.add_argument("--unstored", action="store_true", help="turns with store: false")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rate", type=int, default=200, help="samples per second")
    parser.add_argument("--streams", type=int, default=200, help="of the load paced")
    parser.add_argument("--workers", type=int, default=1, help="of our gateway")
    parser.add_argument("--store", choices=["postgresql", "sqlite"], help="PostgreSQL where its programs are")
    parser.add_argument("--native", action="store_true", help="also the functions of C extensions")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "profile.svg")
    parser.add_argument("--top", type=int, default=30, help="how many functions to print")
    return parser.parse_args()


def job(options: argparse.Namespace, one: Contestant) -> Job:
    """The load, a little longer than the samples are taken."""
    paced = options.load == "paced"
    model = f"canned-{GAP}-200" if paced else "canned"
    turn = {"model": model, "input": "hi", "stream": options.load != "json", "store": not options.unstored}
    connections = options.streams if paced else BURST_CONNECTIONS
    return Job(one.url, turn, connections, options.seconds + WARM, spread=WARM if paced else 0.0)


def record(options: argparse.Namespace, pid: int) -> None:
    """Takes the samples."""
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if program is None:
        raise SystemExit("py-spy is missing; it is among the packages of the extra dev")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    command = [program, "record", "--pid", str(pid), "--duration", str(options.seconds), "--rate", str(options.rate)]
    command += ["--function", "--output", str(options.output)]
    command += ["--subprocesses"] * (options.workers > 1) + ["--native"] * options.native
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stdout + done.stderr
        raise SystemExit(missing_right(said) if "permission" in said.lower() else f"py-spy failed:\n{said[-2000:]}")


def missing_right(said: str) -> str:
    """Why py-spy may not look into another process."""
    status = Path("/proc/self/status").read_text()
    held = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff")), 16)
    reasons = [] if held & _PTRACE else ["the capability SYS_PTRACE (root has it; a container: --cap-add SYS_PTRACE)"]
    if _SCOPE.exists() and (scope := _SCOPE.read_text().strip()) != "0":
        reasons.append(f"or kernel.yama.ptrace_scope=0, which is {scope} (sysctl -w kernel.yama.ptrace_scope=0)")
    lacking = " ".join(reasons) or "a seccomp profile or a security module that allows process_vm_readv and ptrace"
    words = said.strip().partition("\n")[0]  # a backtrace may follow
    return f"py-spy may not read the gateway's memory. What is missing: {lacking}\npy-spy said: {words}"


def profile(options: argparse.Namespace) -> str:
    """Runs all of it; what was served meanwhile, in a line."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        before = stack.enter_context(backend(free_port(), folder))
        stores = Stores(stack, options.store or "", free_port())
        flags = ["--store", stores.make(OURS), "--workers", str(options.workers)]
        mine = stack.enter_context(ours(before, free_port(), lambda: 0, flags, folder))
        assert mine.pid is not None
        command = job(options, mine).command()
        load = stack.enter_context(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        stack.callback(load.terminate)
        time.sleep(WARM)
        used = cpu_seconds(mine.pid)
        record(options, mine.pid)
        busy = (cpu_seconds(mine.pid) - used) / options.seconds
        told = json.loads(load.communicate()[0])
        if told["errors"]:
            raise SystemExit(f"{told['errors']} turns failed, the first with: {told['error']}")
    how = "unstored" if options.unstored else f"stored in {stores.kind}"
    return f"{options.load}, {how}: {told['per_second']:.0f} turns per second while watched, {busy:.0%} of a core"


def main() -> None:
    options = parse()
    sys.stdout.write(profile(options) + "\n\n")
    for share, name in top(options.output.read_text(), options.top):
        sys.stdout.write(f"{share:5.1f} %  {name}\n")
    sys.stdout.write(f"\nflame graph: {options.output}\n")


if __name__ == "__main__":
    main()
