"""The files of `deploy/`: that they parse, and name only commands, options, settings and files that there are."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from leasekeeper import settings_file
from leasekeeper.cli import cli
from leasekeeper.settings_table import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
VARIABLE = re.compile(r"\bLEASEKEEPER_[A-Z_]+\b")
KNOWN = {setting.variable for setting in SETTINGS} | {settings_file.VARIABLE}
INSTALLED = "/srv/leasekeeper/.venv/bin/leasekeeper"


def unit(path: Path) -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=False, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep the case
    parser.read_string(path.read_text())
    return parser


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile, as pairs of an instruction and its arguments."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command of ours that the files run, with where it stands."""
    for path in UNITS:
        for name, value in unit(path)["Service"].items():
            if name.startswith("ExecStart"):
                program, *arguments = shlex.split(value)
                assert program == INSTALLED
                yield f"{path.name} {name}", [re.sub("%.", "x", each) for each in arguments]
    for name, service in compose()["services"].items():
        if "build" in service:
            yield f"compose.yaml {name}", service["command"]
    for name, value in instructions():
        if name == "CMD":
            yield "Dockerfile CMD", yaml.safe_load(value)


@pytest.mark.parametrize(("where", "arguments"), [pytest.param(*each, id=each[0]) for each in commands()])
def test_every_command_is_one_of_ours(where: str, arguments: list[str]) -> None:
    command: click.Command = cli
    context = cli.make_context("leasekeeper", list(arguments))
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None, where
        command, context = found, found.make_context(name, rest, parent=context)


@pytest.mark.parametrize("path", sorted(DEPLOY.iterdir()), ids=lambda path: path.name)
def test_every_variable_is_a_setting(path: Path) -> None:
    assert set(VARIABLE.findall(path.read_text())) - KNOWN == set()


def test_a_stop_reaches_the_worker_and_not_its_browsers() -> None:
    """A browser that gets SIGTERM exits at once, and its last cookies are lost."""
    service = unit(DEPLOY / "leasekeeper-worker@.service")["Service"]
    grace = next(setting.default for setting in SETTINGS if setting.name == "stop_grace")
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) > 2 * float(grace or 0)
    # tini without -g passes a signal to its child alone.
    entries = [yaml.safe_load(value) for name, value in instructions() if name == "ENTRYPOINT"]
    assert entries[-1] == ["tini", "--", "leasekeeper"]
    assert compose()["services"]["worker"]["stop_grace_period"] == "2m"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    assert text.count("ExecStart=") == 1
    assert {"Unit", "Service", "Install"} <= set(unit(path))
    program = shutil.which("systemd-analyze")
    if program is not None:
        here = tmp_path / path.name
        here.write_text(text.replace(INSTALLED, sys.executable))
        done = subprocess.run([program, "verify", str(here)], capture_output=True, text=True, check=False)
        complaints = [line for line in done.stderr.splitlines() if path.name.partition("@")[0] in line]
        assert complaints == []


def test_the_compose_file_hangs_together() -> None:
    found = compose()
    services = found["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source.startswith(".") or source in found["volumes"], name
    stages = {rest.rpartition(" AS ")[2] for name, rest in instructions() if name == "FROM"}
    built = [service["build"] for service in services.values() if "build" in service]
    assert {each["target"] for each in built} <= stages
    for each in built:
        assert (DEPLOY / each["context"] / each["dockerfile"]).is_file()
    # No port of this machine is open to others, and no password has a default.
    assert [each for service in services.values() for each in service.get("ports", ())] == ["127.0.0.1:7070:7070"]
    assert ":-" not in (DEPLOY / "compose.yaml").read_text()


def test_the_dockerfile_copies_what_there_is_and_installs_extras_that_there_are() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            assert [source for source in sources if not (ROOT / source).exists()] == []
        if name == "RUN" and (wanted := re.search(r"\.whl\)\[([\w,]+)\]", rest)):
            assert set(wanted[1].split(",")) <= set(extras)
    users = [rest for name, rest in instructions() if name == "USER"]
    assert users[-1] == "leasekeeper"
