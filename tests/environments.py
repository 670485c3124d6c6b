"""Python environments of their own, for tests of what the development environment must not depend on."""

import fcntl
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python_of(name: str) -> Path:
    """Python of the environment `.venv-NAME`, made of `requirements/NAME.txt` if it is missing; by one test process."""
    with (ROOT / "requirements" / f"{name}.in").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["tools/setup.sh", f".venv-{name}", f"requirements/{name}.txt"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=900)
    return ROOT / f".venv-{name}" / "bin" / "python"
