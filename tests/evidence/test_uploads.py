"""Evidence of real runs in a bucket: delivered before the run is settled, flagged if it was not, read from there."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from leasekeeper.app import App, Run
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.workers import Worker
from leasekeeper.errors import EvidenceUnavailable
from leasekeeper.evidence import delivery
from leasekeeper.evidence.files import EvidenceFolder
from leasekeeper.runtime import machine
from tests.cli.workplace import Workplace
from tests.conformance.world import profile
from tests.evidence.test_places import content, keys, place_at
from tests.runtime.browsing import House, house
from tests.runtime.stage import until
from tests.runtime.test_lost_runs import held, reported
from tests.servers import S3Server

NULL = profile("p1", driver="null")


def new_app() -> App:
    app = App()

    @app.task("leave")
    async def leave(run: Run) -> None:
        await run.attach("order.txt", "order 42")
        await run.attach("page.html", b"<p>42</p>")

    return app


async def command(url: str, *arguments: str, env: Mapping[str, str] | None = None) -> Result:
    """The command line, beside the event loop of the test."""
    return await asyncio.to_thread(Workplace(url=url, directory=Path()).cli, *arguments, env=env)


async def unwell(home: House) -> str | None:
    page = await home.store.find(Worker)
    return next((worker.unwell_reason for worker in page.items if worker.unwell_reason), None)


async def test_what_a_run_leaves_is_in_the_bucket_when_it_is_settled(
    store_url: str, tmp_path: Path, bucket_url: str
) -> None:
    async with house(new_app(), store_url, tmp_path, NULL, drivers="null", evidence=bucket_url) as home:
        job = await home.submit("leave")
        (done,) = await home.do(job)
        run, place = await home.run_of(job), place_at(bucket_url)
        evidence: Any = run.evidence
        assert (done.state, evidence["place"]) == ("completed", place.location)
        assert [each["name"] for each in evidence["artifacts"]] == ["order.txt", "page.html"]
        assert await content(place, f"{run.run_id}/order.txt") == b"order 42"
        # What travelled is not on the machine too.
        assert not (home.evidence(run) / "order.txt").exists()
        shown = await command(store_url, "runs", "show", run.run_id)
        assert f"{place.location}/{run.run_id}" in shown.output


async def test_the_command_line_reads_from_wherever_it_is(
    sqlite_url: str, tmp_path: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with house(new_app(), sqlite_url, tmp_path, NULL, drivers="null", evidence=bucket_url) as home:
        travelled = await home.submit("leave")
        await home.do(travelled)
        run = await home.run_of(travelled)
    async with house(new_app(), sqlite_url, tmp_path, NULL, drivers="null") as home:
        stayed = await home.submit("leave")
        await home.do(stayed)
        here = await home.run_of(stayed)
    bucket = {"LEASEKEEPER_EVIDENCE": bucket_url, "LEASEKEEPER_DATA_DIR": str(home.data)}
    saved = await command(sqlite_url, "runs", "evidence", run.run_id, "--json", env=bucket)
    assert [each["name"] for each in json.loads(saved.output)] == ["order.txt", "page.html"]
    assert (tmp_path / run.run_id / "order.txt").read_text() == "order 42"
    one = await command(sqlite_url, "runs", "evidence", here.run_id, "page.html", "--to", "one", env=bucket)
    assert (one.output, sorted(path.name for path in (tmp_path / "one").iterdir())) == (
        "one/page.html\n",
        ["page.html"],
    )
    twice = await command(sqlite_url, "runs", "evidence", here.run_id, "page.html", "--to", "one", env=bucket)
    assert "exists already" in twice.stderr
    none = await command(sqlite_url, "runs", "evidence", here.run_id, "nothing.png", env=bucket)
    assert "it has: order.txt, page.html" in none.stderr
    elsewhere = await command(sqlite_url, "runs", "evidence", run.run_id, env={"LEASEKEEPER_DATA_DIR": str(home.data)})
    assert (elsewhere.exit_code, "set LEASEKEEPER_EVIDENCE to the place" in elsewhere.stderr) == (6, True)


async def test_a_run_whose_evidence_cannot_be_delivered_is_as_on_a_full_disk(
    sqlite_url: str, tmp_path: Path, s3: S3Server, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "FIRST_CHECK_SECONDS", 0.5)
    bucket = bucket_url.removeprefix("s3://").partition("/")[0]
    app = new_app()

    @app.task("lose")
    async def lose(run: Run) -> None:
        s3.request("DELETE", bucket)
        await run.attach("order.txt", "order 42")

    profiles = (NULL, profile("p2", driver="null"))
    async with house(app, sqlite_url, tmp_path, *profiles, drivers="null", evidence=bucket_url) as home:
        job = await home.submit("lose")
        async with home.worker():
            (done,) = await home.settled(job)
            run, lane = await home.run_of(job), await home.lane()
            assert (run.result, run.stop_reason, lane.state) == ("failed", "EVIDENCE_NOT_SAVED", "review_required")
            assert done.state != "completed"
            assert "NoSuchBucket" in run.message
            assert "artifacts" not in run.evidence
            assert "evidence cannot be delivered" in str(await until(lambda: unwell(home)))
            after = await home.submit("leave", "p2")
            s3.request("PUT", bucket)
            (second,) = await home.settled(after)
            assert second.state == "completed"


async def test_a_worker_without_its_place_claims_nothing(
    sqlite_url: str, tmp_path: Path, s3: S3Server, bucket_url: str
) -> None:
    place = s3.url("not-there-yet")
    async with house(new_app(), sqlite_url, tmp_path, NULL, drivers="null", evidence=place) as home:
        job = await home.submit("leave")
        async with home.worker():
            assert "NoSuchBucket" in str(await until(lambda: unwell(home)))
        assert (await home.store.find(RunRecord, {"job_id": job.job_id})).items == []


async def test_a_place_that_is_away_for_a_moment_is_waited_for(
    tmp_path: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, tries = place_at(bucket_url), 0
    put = place.put

    async def away(*arguments: Any, **facts: Any) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise EvidenceUnavailable("no response")
        await put(*arguments, **facts)

    monkeypatch.setattr(place, "put", away)
    folder = EvidenceFolder(tmp_path, "run_1")
    folder.create()
    await delivery.deliver(place, folder, folder.write("final.png", b"image"), None)
    assert (tries, await keys(place)) == (3, {"run_1/final.png"})


async def test_a_place_that_stays_away_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    folder = EvidenceFolder(tmp_path, "run_1")
    folder.create()
    place = place_at("s3://bucket/runs?endpoint=http://127.0.0.1:1")
    with pytest.raises(delivery.EvidenceNotDelivered, match="cannot be used for evidence"):
        await delivery.deliver(place, folder, folder.write("final.png", b"image"), None, seconds=1.0)


@pytest.mark.parametrize("away", [False, True])
async def test_the_screenshot_of_a_lost_run_travels_too(
    sqlite_url: str, tmp_path: Path, s3: S3Server, bucket_url: str, away: bool
) -> None:
    """Its keeper's report does not wait for the place: by that a profile is resolved."""
    url = s3.url("no-such-bucket") if away else bucket_url
    store, lease = await held(sqlite_url)
    try:
        reports = reported(tmp_path, lease.run_id, lease)
        reports.place = place = place_at(url)
        facts: Any = await reports.facts(lease)
        assert facts.reported_by == "keeper"
        assert facts.evidence["place"] == place.location
        if away:
            assert "artifacts" not in facts.evidence
            assert "NoSuchBucket" in facts.evidence["unsaved"]
            assert "tried again later" in (await reports.facts(lease)).evidence["unsaved"]  # type: ignore[operator]  # text
        else:
            assert [each["name"] for each in facts.evidence["artifacts"]] == ["last.png"]
            assert await content(place, f"{lease.run_id}/last.png") == b"picture"
            assert (await reports.facts(lease)) == facts
    finally:
        await store.close()


@pytest.mark.parametrize(("there", "status"), [(True, "ok"), (False, "fail")])
async def test_doctor_says_whether_evidence_can_be_delivered(
    sqlite_url: str, tmp_path: Path, s3: S3Server, bucket_url: str, there: bool, status: str
) -> None:
    env = {
        "LEASEKEEPER_EVIDENCE": bucket_url if there else s3.url("no-such-bucket"),
        "LEASEKEEPER_DATA_DIR": str(tmp_path / "data"),
    }
    answer = await command(sqlite_url, "doctor", "--only", "evidence", "--json", env=env)
    (finding,) = json.loads(answer.output)["findings"]
    assert (finding["id"], finding["status"]) == ("evidence", status)
    assert ("NoSuchBucket" in finding["found"]) is not there
    assert await keys(place_at(bucket_url)) == set()
