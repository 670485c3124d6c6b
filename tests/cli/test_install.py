"""The package outside of a clone: what the wheel holds, and what is said where an extra is missing."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from leasekeeper.cli.exit_codes import EXTRAS
from leasekeeper.cli.init import FILES

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
OFFLINE = ("--no-index", "--no-deps")
WITHOUT = """\
import sys
for name in {names!r}:
    sys.modules[name] = None  # as if it were not installed
from leasekeeper.cli import main
main()
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as the README says."""
    place = tmp_path_factory.mktemp("dist")
    command = [*PIP, "wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", str(place), str(ROOT)]
    subprocess.run(command, check=True, timeout=240)
    (built,) = place.glob("leasekeeper-*.whl")
    return built


def without(*names: str, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The command line in a Python that lacks these packages."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(names=names), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    kinds = (".py", ".sql", ".toml", ".yaml", ".typed", "")
    wanted = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix in kinds and "__pycache__" not in path.parts
    }
    with ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert wanted - held == set()
    assert "leasekeeper/cli/project/gitignore" in held


def test_an_installed_wheel_writes_a_project_and_applies_its_fleet(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    subprocess.run([*PIP, "install", *OFFLINE, "--target", str(site), str(wheel)], check=True, timeout=240)
    env = {name: value for name, value in os.environ.items() if not name.startswith("LEASEKEEPER_")}
    env["PYTHONPATH"] = str(site)

    def run(*arguments: str, folder: Path) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("-c", "import leasekeeper; print(leasekeeper.__file__)", folder=tmp_path)
    assert where.startswith(str(site))
    run("-m", "leasekeeper", "init", "shop", folder=tmp_path)
    assert sorted(path.name for path in (tmp_path / "shop").iterdir()) == sorted(FILES)
    assert "applied" in run("-m", "leasekeeper", "apply", "fleet.yaml", "--yes", folder=tmp_path / "shop")


@pytest.mark.parametrize("arguments", [["jobs"], ["db", "migrate"], ["db", "status"]], ids=" ".join)
def test_without_psycopg_a_postgresql_store_is_refused_in_one_line(arguments: list[str], tmp_path: Path) -> None:
    store = ["--store", "postgresql://me:s3cr3t@db.example/leasekeeper"]
    done = without("psycopg", arguments=[*store, *arguments], folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "leasekeeper: PostgreSQL stores need psycopg, which is not installed here or lacks its libpq; "
        "install the extra leasekeeper[postgres]\n"
    )


def test_without_the_packages_of_the_server_it_says_which_extra_to_install(tmp_path: Path) -> None:
    done = without("starlette", arguments=["server"], folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "leasekeeper: this needs starlette, which is not installed here; "
        "install it: pip install 'leasekeeper[server]'\n"
    )


def test_every_optional_package_is_known_by_the_extra_that_brings_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra, requirements in project["optional-dependencies"].items():
        for requirement in requirements:
            module = re.split(r"[^\w-]", requirement)[0].replace("-", "_")
            known = [name for name in EXTRAS if module == name or module.startswith(f"{name}_")]
            assert known, f"{requirement} of the extra {extra} is not in EXTRAS"
    assert set(EXTRAS.values()) <= set(project["optional-dependencies"])


def test_the_guide_lists_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    guide = (ROOT / "docs/howto/run-workers.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (`[^|]*`) \|", guide.split("## Start", 1)[0], re.MULTILINE)
    assert {name for cell in listed for name in re.findall(r"`(\w+)`", cell)} == set(project["optional-dependencies"])


def test_without_playwright_init_says_what_to_install(tmp_path: Path) -> None:
    done = without("playwright", arguments=["init"], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Playwright is not installed; install the extra leasekeeper[browser]" in done.stdout
