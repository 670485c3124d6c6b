"""`leasekeeper db` and `sweep`, where the store is looked for, and stores that cannot be used."""

import subprocess
import sys
import uuid
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql

from leasekeeper.cli import cli
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.ports import LeaseRequest
from tests.cli.workplace import Workplace, process


def test_status_changes_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    done = process("db", "status", url=url)
    assert done.returncode == 6, done.stderr
    assert "does not exist yet" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_migrate_makes_the_tables_and_may_run_again(tmp_path: Path) -> None:
    place = Workplace(url=f"sqlite:///{tmp_path}/new.db", directory=tmp_path)
    assert "up to date" in place.text("db", "migrate")
    assert "up to date" in place.text("db", "migrate")
    info = place.json("db", "status")
    assert info["kind"] == "sqlite"
    assert info["schema"] == info["newest_schema"]


def test_the_store_is_named_before_or_after_the_command_or_by_the_environment(place: Workplace) -> None:
    place.submit()
    for arguments, url in (
        (("--store", place.url, "jobs", "--json"), None),
        (("jobs", "--store", place.url, "--json"), None),
        (("jobs", "--json"), place.url),
        (("--store", "sqlite:///elsewhere.db", "jobs", "--store", place.url, "--json"), None),
    ):
        done = CliRunner().invoke(cli, arguments, env={"LEASEKEEPER_STORE": url})
        assert '"task": "buy"' in done.stdout, (arguments, done.stderr)


@pytest.mark.parametrize("url", ["mysql://localhost/x", "nonsense", "sqlite://", "postgresql://127.0.0.1:1/nothing"])
def test_a_store_that_cannot_be_is_an_error(tmp_path: Path, url: str) -> None:
    done = process("jobs", url=url, directory=tmp_path)
    assert done.returncode in (2, 6), done.stderr
    assert done.stderr.startswith("leasekeeper: ")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_path_is_not_an_empty_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tpyo.db"
    for arguments in (
        ("jobs",),
        ("submit", "buy", "--account", "a"),
        ("dlq", "retry", "--all", "--note", "x"),
        ("sweep",),
    ):
        done = CliRunner().invoke(cli, ["--store", url, *arguments])
        assert done.exit_code == 6
        assert "there is no store at" in done.stderr
        assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_password_is_not_repeated() -> None:
    for arguments in (("jobs",), ("db", "status"), ("db", "migrate"), ("jobs", "--json")):
        done = CliRunner().invoke(cli, ["--store", "postgresql://ada:s3cret@127.0.0.1:1/nothing", *arguments])
        assert done.exit_code == 6, done.stderr
        assert "s3cret" not in done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_a_store_on_a_server_is_migrated_by_command_only(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = Workplace(url=request.getfixturevalue(f"{kind}_url"), directory=tmp_path)
    assert "leasekeeper db migrate" in place.fails(6, "jobs")
    assert "leasekeeper db migrate" in place.text("db", "status")
    assert "up to date" in place.text("db", "migrate")
    status = place.json("db", "status")
    assert (status["kind"], status["schema"]) == (kind, status["newest_schema"])
    place.apply()
    place.start_worker()
    job_id = place.submit()
    assert job_id[:13] in place.text("jobs")
    assert place.json("why", "job", job_id)["text"]["headline"].startswith(f"job {job_id} is ready")
    assert place.text("jobs", "cancel", job_id, "--note", "x") == f"job {job_id} is now cancelled\n"


def test_a_file_that_is_no_store_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, not a database, and they are longer than a header\n" * 20)
    before = path.read_bytes()
    done = process("jobs", url=f"sqlite:///{path}")
    assert done.returncode == 6, done.stderr
    assert path.read_bytes() == before


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    done = process("apply", "-", "--yes", url="sqlite:////proc/leasekeeper.db", input="accounts: {a: {}}")
    assert done.returncode == 6, done.stderr
    assert done.stderr.startswith("leasekeeper: ")


def test_a_wrong_setting_is_named(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEKEEPER_LEASE_TTL", "soon")
    assert "LEASEKEEPER_LEASE_TTL" in place.fails(2, "jobs")


def test_sweep_does_one_pass(place: Workplace) -> None:
    assert place.text("sweep") == "nothing to do\n"
    request = LeaseRequest(
        profile_id=ProfileId("twin_a"),
        worker_id=WorkerId("script"),
        incarnation="i1",
        ttl=timedelta(seconds=1),
    )
    place.do(lambda store: store.acquire(request))
    while not (expired := place.json("sweep")["expired"]):
        pass
    assert expired == 1
    assert place.json("profiles", "show", "twin_a")["lane"]["state"] in ("stale", "quarantined")


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    for command in (("jobs",), ("db", "status"), ("db", "migrate")):
        done = CliRunner().invoke(cli, ["--store", f"sqlite:///{tmp_path}/{'x' * 300}.db", *command])
        assert done.exit_code == 6, done.stderr
        assert "cannot be read: File name too long" in done.stderr


def test_an_empty_url_is_not_the_default_store(place: Workplace) -> None:
    result = place.cli("jobs", "--store", "")
    assert result.exit_code == 2
    assert "must be sqlite:///" in result.stderr


def test_a_role_that_may_not_write_is_reported_what_it_needs(postgres_url: str) -> None:
    role = f"lk_{uuid.uuid4().hex[:12]}"
    poor = postgres_url.replace("://postgres@", f"://{role}@")
    assert poor != postgres_url
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        try:
            made = process("db", "migrate", url=poor)
            assert process("db", "migrate", url=postgres_url).returncode == 0
            read = process("jobs", url=poor)
        finally:
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
    for done in (made, read):
        assert done.returncode == 6, done.stderr
        assert "permission denied" in done.stderr
        assert "this role needs" in done.stderr


def test_closed_streams_lead_nowhere(tmp_path: Path) -> None:
    shell = f'{sys.executable} -m leasekeeper --version <&- >&-; echo "said $?"'
    done = subprocess.run(["sh", "-c", shell], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("said 0\n", "")
