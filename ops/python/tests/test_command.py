"""The command of the wheel."""

import subprocess
import sys

import autobwd


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "autobwd", *arguments], capture_output=True, text=True, timeout=60
    )


def test_the_command_has_the_version_of_the_module():
    assert run("--version").stdout == f"autobwd {autobwd.__version__}\n"


def test_the_command_reads_models_and_has_its_exit_status():
    shown = run("show", "images.onnx")
    assert shown.returncode == 0 and "conv2d" in shown.stdout
    missing = run("show", "missing.onnx")
    assert missing.returncode == 2 and missing.stderr.startswith("autobwd: cannot read")
