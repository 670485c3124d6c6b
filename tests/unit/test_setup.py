"""tools/setup.sh with a stand-in for Python: when it installs, and when there is nothing to do."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "setup.sh"
# Makes a virtual environment with itself in it, and writes down what it was asked to install.
PYTHON = """#!/bin/sh
case "$*" in
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
    *install*) echo "$*" >>"$LOG" ;;
    -VV) echo stand-in ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project in a folder whose name has a space."""
    project = tmp_path / "a project"
    (project / "tools").mkdir(parents=True)
    shutil.copy(SCRIPT, project / "tools")
    script = project / "src/leasekeeper/service/pages/assets/vendor/htmx.min.js"
    script.parent.mkdir(parents=True)
    script.write_text("as an installation copies it")
    for name in ("pyproject.toml", "requirements.txt", "tools/vendored.py"):
        (project / name).write_text(name)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return project


def installed(project: Path) -> int:
    """How many installations one more run makes."""
    log = project.parent / "log"
    log.write_text("")
    environ = {**os.environ, "PYTHON": str(project.parent / "python"), "LOG": str(log)}
    subprocess.run(
        ["sh", project / "tools" / "setup.sh", ".venv", "requirements.txt"],
        env=environ,
        check=True,
        capture_output=True,
    )
    return len(log.read_text().splitlines())


def test_what_is_there_is_not_installed_again(project: Path) -> None:
    assert [installed(project), installed(project)] == [2, 0]
    (project / "pyproject.toml").write_text("changed")
    assert [installed(project), installed(project)] == [1, 0]


def test_a_virtual_environment_whose_python_is_gone_is_made_again(project: Path) -> None:
    installed(project)
    (project / ".venv" / "bin" / "python").unlink()
    (project / ".venv" / "bin" / "python").symlink_to("gone")
    assert [installed(project), installed(project)] == [2, 0]


def test_a_script_of_the_pages_that_is_gone_is_copied_again(project: Path) -> None:
    installed(project)
    (project / "src/leasekeeper/service/pages/assets/vendor/htmx.min.js").unlink()
    assert installed(project) == 1
