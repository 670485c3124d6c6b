"""A server on loopback: whoever started it needs no token, and nobody else can read theirs."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from leasekeeper import config
from leasekeeper.errors import InputError
from leasekeeper.local_tokens import read_local_token, token_file, write_local_token
from leasekeeper.stores import open_store
from tests.conformance.world import fleet, profile
from tests.service.restarts import ServerProcess


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of one user's state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def stats(url: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "leasekeeper", "--store", url, "stats", "--json"]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **environ}
    )


def call(url: str, token: str) -> int:
    return httpx2.get(f"{url}/v1/stats", headers={"Authorization": f"Bearer {token}"}).status_code


def test_commands_of_this_user_need_no_token(store_url: str, tmp_path: Path, state: Path) -> None:
    with ServerProcess(store_url, tmp_path) as server:
        assert server.token, "the first start prints an admin token all the same"
        file = token_file(server.url, os.environ)
        assert file is not None
        assert file.is_relative_to(state)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        for url in (server.url, f"http://localhost:{server.port}/"):
            found = stats(url)
            assert found.returncode == 0, found.stderr
            assert "jobs" in json.loads(found.stdout)
        text = file.read_text().strip()
        assert text != server.token
        other = stats(server.url, XDG_STATE_HOME=str(tmp_path / "other"))
        assert other.returncode != 0, "another user has no such file"
        refused = json.loads(other.stderr)["error"]
        assert refused["code"] == "UNAUTHENTICATED", "said by the server, at once"
    assert not file.exists()


def test_the_token_is_another_after_a_stop_and_the_same_after_a_crash(
    sqlite_url: str, tmp_path: Path, state: Path
) -> None:
    server = ServerProcess(sqlite_url, tmp_path)
    server.start()
    file = token_file(server.url, os.environ)
    assert file is not None
    first = file.read_text().strip()
    server.kill()
    assert file.exists()
    server.start()
    assert file.read_text().strip() == first, "a worker of this machine goes on"
    assert call(server.url, first) == 200
    server.kill(signal.SIGTERM)
    assert not file.exists()
    server.start()
    second = file.read_text().strip()
    assert second != first
    assert (call(server.url, first), call(server.url, second)) == (401, 200)
    # What others could read is not used again.
    server.kill()
    file.chmod(0o644)
    server.start()
    assert file.read_text().strip() not in (first, second)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert call(server.url, second) == 401
    server.kill(signal.SIGTERM)
    database = Path(sqlite_url.removeprefix("sqlite:///")).read_bytes().decode("latin-1")
    assert first not in database
    assert second not in database


def test_only_servers_of_this_machine_have_such_a_file(state: Path) -> None:
    for url in ("https://leases.example.com", "http://10.0.0.1:7070", "sqlite:///leasekeeper.db", "http://127.0.0.1/x"):
        assert token_file(url, os.environ) is None
    assert token_file("http://127.0.0.1:7070", {}) is None
    place = token_file("http://[::1]:7070", os.environ)
    assert place == token_file("http://localhost:7070", os.environ) == state / "leasekeeper" / "servers" / "7070.token"


def test_the_settings_find_it_and_a_given_token_wins(state: Path) -> None:
    url = "http://127.0.0.1:7071"
    assert config.load(store=url).token == ""
    place = token_file(url, os.environ)
    assert place is not None
    write_local_token(place, "lk_local")
    assert config.load(store=url).token == config.load(store=url).browsers.token == "lk_local"  # noqa: S105 - no real one
    assert config.load(store=url, token="lk_mine").token == "lk_mine"  # noqa: S105, S106 - no real one
    assert config.load(store="https://leases.example.com").token == ""
    place.chmod(0o640)
    with pytest.raises(InputError, match="can read it"):
        read_local_token(url, os.environ)


APP = "from leasekeeper import App\n\napp = App()\n\n\n@app.task('visit')\nasync def visit(run): ...\n"


async def furnished(url: str) -> None:
    """A profile without a browser."""
    store = await open_store(url)
    await store.apply(fleet(profile("p1", driver="null")), actor="test")
    await store.close()


def test_up_serves_on_loopback_and_says_where(tmp_path: Path, sqlite_url: str, state: Path) -> None:
    (tmp_path / "tasks.py").write_text(APP)
    asyncio.run(furnished(sqlite_url))

    def up(*arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "leasekeeper", "--store", sqlite_url, "up", "tasks:app", *arguments]
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "LEASEKEEPER_DRIVERS": "null"},
        )

    with up("--port", "0") as first:
        try:
            assert first.stdout is not None
            line = next(line for line in first.stdout if line.startswith("API at "))
            url = line.split()[2].removesuffix("/v1,")
            found = stats(url)
            assert found.returncode == 0, found.stderr
            assert httpx2.get(f"{url}/v1/stats").status_code == 401
            # It runs sessions beside its jobs.
            headers = {"Authorization": f"Bearer {read_local_token(url, os.environ)}"}
            with httpx2.Client(base_url=url, headers=headers, timeout=60) as program:
                opened = program.post("/v1/sessions", json={"profile_id": "p1"})
                assert opened.status_code == 201, opened.text
                released = program.post(f"/v1/sessions/{opened.json()['session_id']}/release", json={})
                assert released.json()["profile_state"] == "available"
            # The link that it prints signs in to the pages, once.
            link = next(line for line in first.stdout if "/ui/enter?code=" in line).strip()
            assert link.startswith(url)
            with httpx2.Client() as person:
                assert person.get(link).status_code == 200
                assert "Sign out" in person.get(f"{url}/ui/").text
            assert httpx2.get(link).status_code == 410
            # A port that was asked for and is taken is said.
            with up("--port", url.rsplit(":", 1)[1]) as second:
                _, errors = second.communicate(timeout=120)
            assert second.returncode == 2
            assert "another program listens there" in errors
        finally:
            first.terminate()
            first.communicate(timeout=120)
    assert first.returncode == 0
    assert token_file(url, os.environ) is not None
    assert not list(state.rglob("*.token"))
