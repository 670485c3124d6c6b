"""Profiles that exist, with a real browser: adopted by the how-to's commands, then run without a person."""

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

from leasekeeper.core.events import EventType
from leasekeeper.core.profiles import ProfileState
from leasekeeper.wire import load_fleet
from tests.runtime.browsing import house
from tests.runtime.stage import until
from tests.runtime.test_places import browser_in, new_app

ROOT = Path(__file__).resolve().parents[2]
HOWTO = ROOT / "docs/howto/bring-your-existing-profiles.md"
COOKIE: Any = {"name": "session", "value": "1", "url": "http://site.test", "expires": 4e9}


def fleet_of_the_howto() -> str:
    text = HOWTO.read_text(encoding="utf-8")
    return text.partition("```yaml\n")[2].partition("```")[0]


async def apply(url: str, folder: Path, *arguments: str) -> tuple[int | None, str]:
    command = (sys.executable, "-m", "leasekeeper", "--store", url, "apply", "fleet.yaml", "--yes", *arguments)
    program = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await program.communicate()
    return program.returncode, said.decode()


async def test_the_howto_goes_as_it_is_reported(sqlite_url: str, tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "fleet.yaml").write_text(fleet_of_the_howto(), encoding="utf-8")
    used = [Path(str(each.user_data_dir)) for each in load_fleet(shop / "fleet.yaml").profiles.values()]
    assert used == [shop / "profiles" / "us_018", shop / "profiles" / "us_019"]
    async with browser_in(used[0]) as context:
        await context.add_cookies([COOKIE])
    shutil.copytree(used[0], used[1], symlinks=True)

    async with house(new_app(), sqlite_url, tmp_path) as home:
        async with browser_in(used[1]):
            code, said = await apply(sqlite_url, shop, "--adopt")
        assert code == 7, said
        assert "adopted 1 profile" in said
        assert "is open in a browser" in said

        (done,) = await home.do(await home.submit("visit", "store_us_018"))
        assert (done.state, (await home.run_of(done)).output) == ("completed", {"cookie": ["session"]})
        (event,) = await home.events(type=EventType.PROFILE_ADOPTED)
        assert (event.profile_id, event.data["directory"]) == ("store_us_018", str(used[0]))
        assert await home.events(type=EventType.MANUAL_USE_DETECTED) == []

        code, said = await apply(sqlite_url, shop, "--adopt")
        assert (code, "adopted 1 profile" in said) == (0, True), said
        (done,) = await home.do(await home.submit("visit", "store_us_019"))
        assert done.state == "completed"
        assert (await home.lane("store_us_019")).state is ProfileState.AVAILABLE


async def test_a_used_directory_that_nobody_adopted_still_goes_to_a_person(sqlite_url: str, tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "fleet.yaml").write_text(fleet_of_the_howto(), encoding="utf-8")
    async with browser_in(shop / "profiles" / "us_018") as context:
        await context.add_cookies([COOKIE])
    async with house(new_app(), sqlite_url, tmp_path) as home:
        code, said = await apply(sqlite_url, shop)
        assert (code, "not adopted" in said) == (0, True), said
        await home.submit("visit", "store_us_018")

        async def waits_for_a_person() -> bool:
            return (await home.lane("store_us_018")).state is ProfileState.REVIEW_REQUIRED

        async with home.worker():
            await until(waits_for_a_person)
        assert len(await home.events(type=EventType.MANUAL_USE_DETECTED)) == 1
