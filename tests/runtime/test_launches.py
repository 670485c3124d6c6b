"""Launches that go wrong, and browsers that change under a worker: what becomes of the profile."""

import errno
import json
import sys
from pathlib import Path
from typing import Any

import playwright
import pytest

from leasekeeper.app import App, Run
from leasekeeper.browsers.finding import Found, find_browser
from leasekeeper.browsers.profile_directory import Condition, inspect
from leasekeeper.core.jobs import Job
from leasekeeper.core.profiles import ManualUse
from leasekeeper.errors import InputError
from leasekeeper.ports import ClaimRequest, Grant
from leasekeeper.runtime import machine
from tests.conformance.world import profile
from tests.runtime.browsing import house
from tests.runtime.test_machine import unwell

# A browser that takes its profile and is killed before its first word.
DIES_AT_ONCE = """
for flag in "$@"; do case $flag in --user-data-dir=*) directory=${flag#--user-data-dir=};; esac; done
mkdir -p "$directory/Default"
echo '{"profile":{"exit_type":"Crashed"}}' > "$directory/Default/Preferences"
ln -s "somewhere-$$" "$directory/SingletonLock"
kill -9 $$
"""


def new_app() -> App:
    app = App()

    @app.task("visit", warm=False)
    async def visit(run: Run) -> dict[str, Any]:
        await run.page.goto("data:text/html,hello")
        return {"pages": [page.url for page in run.context.pages]}

    return app


def program(path: Path, body: str, *, version: str, shell: Path = Path("/bin/sh")) -> None:
    """A browser of this version that does this when it is started."""
    path.write_text(f'#!{shell}\n[ "$1" = --version ] && {{ echo "Chromium {version}"; exit; }}\n{body}\n')
    path.chmod(0o755)


def starts(found: Found) -> str:
    return f'exec {found.path} "$@"'


async def test_a_browser_that_died_before_its_first_word_is_not_taken_for_closed(
    sqlite_url: str, tmp_path: Path
) -> None:
    program(tmp_path / "browser", DIES_AT_ONCE, version="150.0.1.2")
    async with house(new_app(), sqlite_url, tmp_path, browser=str(tmp_path / "browser")) as home:
        job = await home.submit("visit")
        (failed,) = await home.do(job)
        run, lane = await home.run_of(job), await home.lane()
        assert (failed.state, run.stop_reason) == ("scheduled", "BROWSER_LAUNCH_FAILED")
        assert lane.state != "available"
        assert "could not be proven closed" in lane.state_reason


async def test_manual_use_is_noticed_after_a_launch_that_started_no_browser(sqlite_url: str, tmp_path: Path) -> None:
    real, shell = find_browser(), tmp_path / "sh"
    shell.symlink_to("/bin/sh")
    program(tmp_path / "browser", starts(real), version=real.version, shell=shell)
    async with house(new_app(), sqlite_url, tmp_path, browser=str(tmp_path / "browser")) as home:
        await home.do(await home.submit("visit"))
        directory = home.profiles / "p1"
        async with home.worker():
            shell.unlink()  # what the program is made of is gone, so that it cannot be started
            job = await home.submit("visit")
            await home.settled(job)
        run, lane = await home.run_of(job), await home.lane()
        assert (run.stop_reason, lane.state) == ("BROWSER_LAUNCH_FAILED", "available")
        assert json.loads((directory / ".leasekeeper" / "fence").read_text())["token"] == run.token
        assert inspect(directory, engine=real.engine).condition is Condition.SEALED
        (directory / "Default" / "Preferences").touch()
        assert inspect(directory, engine=real.engine).condition is Condition.CHANGED


async def test_a_browser_that_is_upgraded_under_a_worker_is_known_by_its_new_version(
    sqlite_url: str, tmp_path: Path
) -> None:
    real, path = find_browser(), tmp_path / "browser"
    program(path, starts(real), version=f"{real.engine - 1}.0.1.2")
    async with house(new_app(), sqlite_url, tmp_path, browser=str(path)) as home, home.worker():
        (first,) = await home.settled(await home.submit("visit"))
        program(path, starts(real), version=real.version)
        for job in (await home.submit("visit"), await home.submit("visit")):
            (done,) = await home.settled(job)
            run = await home.run_of(done)
            assert (first.state, done.state, run.actual["browser"]) == ("completed", "completed", real.version)
        assert (await home.lane()).engine == real.engine


async def test_an_upgrade_between_a_claim_and_its_launch_is_noticed(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, path = find_browser(), tmp_path / "browser"
    program(path, starts(real), version=f"{real.engine - 1}.0.1.2")
    async with house(new_app(), sqlite_url, tmp_path, browser=str(path)) as home:
        claim = home.store.claim

        async def claim_then_upgrade(request: ClaimRequest) -> list[Grant]:
            grants = await claim(request)
            if grants:
                program(path, starts(real), version=real.version)
            return grants

        monkeypatch.setattr(home.store, "claim", claim_then_upgrade)
        (done,) = await home.do(await home.submit("visit"))
        assert (await home.run_of(done)).actual["browser"] == real.version
        assert (await home.lane()).engine == real.engine


async def test_of_an_adopted_directory_the_folder_default_is_used(sqlite_url: str, tmp_path: Path) -> None:
    directory = tmp_path / "adopted"
    for name in ("Default", "Profile 1"):
        (directory / name).mkdir(parents=True)
        (directory / name / "Preferences").write_text('{"profile": {"exit_type": "Normal"}}')
    names = {"Default": {"name": "a"}, "Profile 1": {"name": "b"}}
    said = {"last_used": "Profile 1", "last_active_profiles": ["Profile 1"], "info_cache": names}
    (directory / "Local State").write_text(json.dumps({"profile": said}))
    adopted = profile("p1", user_data_dir=str(directory), manual_use=ManualUse.ACCEPT)
    async with house(new_app(), sqlite_url, tmp_path, adopted) as home:
        for _ in range(2):
            (done,) = await home.do(await home.submit("visit"))
            assert (await home.run_of(done)).output == {"pages": ["data:text/html,hello"]}
        assert (await home.lane()).state == "available"
    assert [path.name for path in (directory / "Profile 1").iterdir()] == ["Preferences"]
    assert (directory / "Default" / "History").exists()


# Refuses one system call to whatever is started after it, as a sandbox does.
SANDBOX = """#!{python}
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 434), (0x06, 0, 0, 0x00050000 | {number}), (0x06, 0, 0, 0x7fff0000)]
filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(filters))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0
os.execv({node!r}, [{node!r}, *sys.argv[1:]])
"""


@pytest.mark.parametrize(
    ("number", "said"), [(errno.EPERM, "pidfd_open failed"), (errno.ESRCH, "is gone: [Errno 3] No such process")]
)
async def test_a_keeper_that_cannot_watch_its_worker_is_a_launch_that_failed_and_counts(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    """pidfd_open is refused, as by seccomp in some containers, or sees no process, as in a PID namespace. The keeper
    then says that the lease is lost, but the worker has it still: what is given back would be tried without end."""
    node = str(Path(playwright.__file__).parent / "driver" / "node")
    sandbox = tmp_path / "node"
    sandbox.write_text(SANDBOX.format(python=sys.executable, node=node, number=number))
    sandbox.chmod(0o700)
    monkeypatch.setenv("PLAYWRIGHT_NODEJS_PATH", str(sandbox))
    async with house(new_app(), sqlite_url, tmp_path) as home:
        (failed,) = await home.do(job := await home.submit("visit"))
        run = await home.run_of(job)
        assert (failed.state, failed.attempt, run.stop_reason) == ("scheduled", 1, "BROWSER_LAUNCH_FAILED")
        assert said in run.message
        assert (await home.lane()).state == "available"


async def test_a_data_directory_that_others_may_write_to_starts_no_keeper_and_costs_no_attempt(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "FIRST_CHECK_SECONDS", 0.2)
    async with house(new_app(), sqlite_url, tmp_path) as home:
        (done,) = await home.do(await home.submit("visit"))
        assert done.state == "completed"
        async with home.worker():
            await home.settled(await home.submit("visit"))
            home.data.chmod(0o777)
            swapped = home.data / "bin" / "keeper"
            swapped.write_text(f"#!/bin/sh\ntouch {tmp_path}/swapped\n")
            job = await home.submit("visit")
            why = str((await unwell(home)).unwell_reason)
            assert why.startswith(f"data directory cannot be used: {home.data} can be written to by other users (mode")
            waits = await home.store.get(Job, job.job_id)
            assert (waits.attempt, waits.blocked_reason) == (0, "blocked_by_no_worker")
            home.data.chmod(0o755)
            (done,) = await home.settled(job)
            assert (done.state, done.attempt) == ("completed", 1)
            home.data.chmod(0o777)
        with pytest.raises(InputError, match="chmod go-w"):
            async with home.worker():
                pass
        home.data.chmod(0o755)
        assert not (tmp_path / "swapped").exists()


async def test_a_run_whose_page_floods_playwright_ends_alone_and_says_why(sqlite_url: str, tmp_path: Path) -> None:
    app = new_app()

    @app.task("flood")
    async def flood(run: Run) -> None:
        await run.page.evaluate("'x'.repeat(1e8)")

    async with house(app, sqlite_url, tmp_path, profile("p1"), profile("p2"), max_message_mb=2) as home:
        flooding, beside = await home.submit("flood"), await home.submit("visit", "p2")
        failed, done = await home.do(flooding, beside, concurrency=2)
        assert (failed.stop_reason, done.state) == ("BROWSER_CRASHED", "completed")
        run: Any = await home.run_of(flooding)
        assert "above the limit (LEASEKEEPER_MAX_MESSAGE_MB)" in run.message
        assert run.evidence["keeper"]["cause"] == "message_too_large"
        assert (await home.lane()).state == "available"
