"""A run's evidence while it is gathered: what a task may attach, and what is left for Leasekeeper's own."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from leasekeeper import config
from leasekeeper.core.accounts import Proxy
from leasekeeper.core.ids import ProxyId
from leasekeeper.errors import InputError
from leasekeeper.evidence import files
from leasekeeper.ports import Grant, Store
from leasekeeper.runtime import gathering
from leasekeeper.runtime.gathering import RESERVED, RunEvidence
from leasekeeper.runtime.opening import Kit


async def gathered(root: Path) -> RunEvidence:
    evidence = RunEvidence(root, "run_1")
    await evidence.create()
    return evidence


@pytest.mark.parametrize("name", sorted([*RESERVED, "report.json.part", "last.png.part"]))
async def test_a_task_cannot_have_the_names_that_the_keeper_writes_to(tmp_path: Path, name: str) -> None:
    evidence = await gathered(tmp_path)
    with pytest.raises(InputError, match="Leasekeeper's own"):
        await evidence.attach(name, b"")


async def test_a_task_leaves_room_for_the_last_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (files, gathering):
        monkeypatch.setattr(module, "MOST_ARTIFACTS", 10)
    evidence = await gathered(tmp_path)
    (evidence.folder / "keeper.json").write_text("{}")
    for number in range(5):
        await evidence.attach(f"file-{number}", b"")
    with pytest.raises(InputError, match="no more fit"):
        await evidence.attach("one-more", b"")
    evidence.save_soon("final.png", b"")
    await evidence.saved()
    assert (evidence.unsaved, evidence.artifacts[-1].name) == (None, "final.png")


async def test_what_cannot_be_adopted_is_noted_and_ends_nothing(tmp_path: Path) -> None:
    evidence = await gathered(tmp_path)
    os.mkfifo(evidence.folder / "last.png")
    evidence.adopt_now("last.png")
    assert "is not a file" in str(evidence.unsaved)


async def test_a_login_is_not_kept_as_a_proxy_is_told_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGIN", "user:hunter-2-secret")
    kit = Kit(config.load({}, data_dir=str(tmp_path)).browsers, cast(Store, None))
    proxy = Proxy(proxy_id=ProxyId("x"), server="http://proxy.test:1", credentials="env:LOGIN")
    await kit._credentials(cast(Grant, SimpleNamespace(proxy=proxy)))
    assert kit.redactor.text("sent dXNlcjpodW50ZXItMi1zZWNyZXQ= along") == "sent [redacted] along"
