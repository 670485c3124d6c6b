"""Orders that are older than their deadline when the browser starts at last: the worker's word counts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasekeeper.browsers.keeper_link import KeeperLink
from tests.browsers.keeper_stage import Stage, boot_time, stage_in


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as stage:
        yield stage
        stage.all_gone()


async def test_a_lease_that_was_renewed_while_the_browser_was_slow_to_start_is_not_lost(stage: Stage) -> None:
    link = KeeperLink(stage.orders(seconds=-1))
    link.extend(boot_time() + 300, boot_time() + 360)
    report = await stage.visit(link)
    assert (report.cause, report.refused) == ("closed", None)
