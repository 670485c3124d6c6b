"""`leasekeeper doctor` and real fakes: one call each, the plan where the vendor tells it, and who does not answer."""

from pathlib import Path

import pytest

from leasekeeper import config
from leasekeeper.core.doctor.findings import Status, Verdict
from leasekeeper.runtime.doctor import ALL, Installation, examine_site
from leasekeeper.stores import open_store
from tests.launchers.stands import standing


async def examined(url: str, folder: Path) -> Verdict:
    loaded = config.load({}, store=url, data_dir=str(folder / "data"))
    wanted = [check for check in ALL if check.id == "launchers"]
    (finding,) = await examine_site(Installation(loaded, with_browser=False), wanted)
    return finding.verdict


@pytest.mark.parametrize("driver", ["kameleo", "adspower", "gologin"])
async def test_each_launcher_is_called_once(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    monkeypatch.setenv("LAUNCHER_PLAN", "2")
    store = await open_store(sqlite_url)
    with standing(driver, tmp_path) as stand:
        await store.apply(stand.fleet("p1", "p2", "p3", cap=3), actor="test")
        found = await examined(sqlite_url, tmp_path)
        told = driver == "kameleo"
        assert found.status is (Status.WARN if told else Status.OK), found.found
        assert ("allows 2 at once, declared: max_running 3" in found.found) == told
        # GoLogin has no call that changes nothing: only its port is tried.
        assert len(stand.launcher.ask("/_log")) == (0 if driver == "gologin" else 1)
        stand.launcher.kill()
        found = await examined(sqlite_url, tmp_path)
        assert found.status is Status.FAIL
        assert "1 launcher did not answer: mlx" in found.found
        monkeypatch.delenv("FAKE_LAUNCHER_TOKEN")
        assert "FAKE_LAUNCHER_TOKEN" in (await examined(sqlite_url, tmp_path)).found
    await store.close()
