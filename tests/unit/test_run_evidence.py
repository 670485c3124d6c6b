"""A run's evidence while it is collected: what a task may attach, and what is left for Leasekeeper's own."""

import os
from pathlib import Path
from typing import cast

import pytest

from leasekeeper.config import SecretConfig
from leasekeeper.core.accounts import Proxy
from leasekeeper.core.ids import ProxyId
from leasekeeper.errors import InputError
from leasekeeper.evidence import files
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Store
from leasekeeper.runtime import evidence as run_evidence
from leasekeeper.runtime.evidence import RESERVED, RunEvidence
from leasekeeper.runtime.proxy_check import ProxyCheck
from tests.unit.records import a_grant


async def new_evidence(root: Path) -> RunEvidence:
    evidence = RunEvidence(root, "run_1")
    await evidence.create()
    return evidence


@pytest.mark.parametrize("name", sorted([*RESERVED, "report.json.part", "last.png.part"]))
async def test_a_task_cannot_have_the_names_that_the_keeper_writes_to(tmp_path: Path, name: str) -> None:
    evidence = await new_evidence(tmp_path)
    with pytest.raises(InputError, match="Leasekeeper's own"):
        await evidence.attach(name, b"")


async def test_a_task_leaves_room_for_the_last_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (files, run_evidence):
        monkeypatch.setattr(module, "MAX_ARTIFACTS", 5 + len(RESERVED))
    evidence = await new_evidence(tmp_path)
    (evidence.folder / "keeper.json").write_text("{}")
    for number in range(5):
        await evidence.attach(f"file-{number}", b"")
    with pytest.raises(InputError, match="no more fit"):
        await evidence.attach("one-more", b"")
    evidence.save_soon("final.png", b"")
    await evidence.saved()
    assert (evidence.unsaved, evidence.artifacts[-1].name) == (None, "final.png")


async def test_what_cannot_be_adopted_is_noted_and_ends_nothing(tmp_path: Path) -> None:
    evidence = await new_evidence(tmp_path)
    os.mkfifo(evidence.folder / "last.png")
    evidence.adopt_now("last.png")
    assert "is not a file" in str(evidence.unsaved)


async def test_a_login_is_not_kept_as_a_proxy_is_reported_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGIN", "user:hunter-2-secret")
    redactor = Redactor()
    proxy = Proxy(proxy_id=ProxyId("x"), server="http://proxy.test:1", credentials="env:LOGIN")
    # A login of the environment is not asked of any store.
    await ProxyCheck(cast(Store, None), None, SecretConfig(), redactor).credentials(a_grant(proxy=proxy))
    assert redactor.text("sent dXNlcjpodW50ZXItMi1zZWNyZXQ= along") == "sent [redacted] along"
