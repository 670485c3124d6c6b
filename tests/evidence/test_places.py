"""What every place of evidence promises, in each: a folder, and a bucket of a real S3 server."""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from leasekeeper import config as settings
from leasekeeper.core.ids import is_id
from leasekeeper.errors import EvidenceRefused, EvidenceUnavailable, InputError, NotFound
from leasekeeper.evidence.places import open_place
from leasekeeper.evidence.redact import Redactor
from leasekeeper.evidence.retention import Limits, prune_place
from leasekeeper.evidence.s3 import parse_bucket
from leasekeeper.evidence_port import Evidence
from tests.servers import S3Server

RUN = "01a1e1a7-d9fa-7081-988b-181cbd6564a{}"
KEY = f"{RUN.format(1)}/final.png"


def place_at(text: str) -> Evidence:
    place = open_place(settings.load({}, evidence=text).browsers)
    assert place is not None
    return place


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Evidence:
    text = f"{tmp_path}/evidence" if request.param == "folder" else request.getfixturevalue("bucket_url")
    return place_at(text)


async def put(place: Evidence, key: str, data: bytes, source: Path, **other: object) -> None:
    await asyncio.to_thread(source.write_bytes, data)
    facts = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "media_type": "image/png", **other}
    await place.put(key, source, **facts)  # type: ignore[arg-type]  # wrong facts are what some tests give


async def content(place: Evidence, key: str) -> bytes:
    return b"".join([chunk async for chunk in place.get(key)])


async def keys(place: Evidence, prefix: str = "") -> set[str]:
    return {entry.key async for entry in place.entries(prefix)}


async def test_what_was_put_is_listed_read_and_deleted(place: Evidence, tmp_path: Path) -> None:
    await place.check()
    large = os.urandom(3 * 1024 * 1024)
    await put(place, KEY, b"image", tmp_path / "a")
    await put(place, f"{RUN.format(2)}/trace.zip", large, tmp_path / "a")
    assert await keys(place) == {KEY, f"{RUN.format(2)}/trace.zip"}
    assert await keys(place, RUN.format(1)) == {KEY}
    assert (await content(place, KEY), await content(place, f"{RUN.format(2)}/trace.zip")) == (b"image", large)
    await place.delete([KEY, f"{RUN.format(3)}/gone.png"])
    assert KEY not in await keys(place)
    with pytest.raises(NotFound):
        await content(place, KEY)


async def test_the_same_content_again_is_no_error_and_another_content_is(place: Evidence, tmp_path: Path) -> None:
    await put(place, KEY, b"image", tmp_path / "a")
    await put(place, KEY, b"image", tmp_path / "a")
    with pytest.raises(EvidenceRefused):
        await put(place, KEY, b"other", tmp_path / "a")
    assert await content(place, KEY) == b"image"


@pytest.mark.parametrize("wrong", [{"sha256": "0" * 64}, {"size": 4}])
async def test_a_file_that_is_not_what_its_record_says_is_not_kept(
    place: Evidence, tmp_path: Path, wrong: Mapping[str, object]
) -> None:
    with pytest.raises(EvidenceRefused):
        await put(place, KEY, b"image", tmp_path / "a", **wrong)
    assert await keys(place) == set()


@pytest.mark.parametrize(
    "key", ["final.png", "../final.png", "a/../b", "/etc/passwd", "a//b", "a/b/c/d/e", "a/.hidden"]
)
async def test_a_key_leads_nowhere_else(place: Evidence, tmp_path: Path, key: str) -> None:
    with pytest.raises(InputError, match="cannot name evidence"):
        await put(place, key, b"image", tmp_path / "a")
    with pytest.raises(InputError, match="cannot name evidence"):
        await content(place, key)
    with pytest.raises(InputError, match="cannot name evidence"):
        await place.delete([key])


async def test_retention_by_age_and_by_size(place: Evidence, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        await put(place, f"{RUN.format(number)}/final.png", b"x" * 100, tmp_path / "a")
    await put(place, "not-a-run/notes.txt", b"x" * 100, tmp_path / "a")
    young = await prune_place(place, Limits(older_than=timedelta(0), max_bytes=0))
    assert young.run_ids == ()
    later = datetime.now(UTC) + timedelta(days=40)
    limits = Limits(older_than=None, max_bytes=100)
    first = await prune_place(place, limits, in_use={RUN.format(1)}, now=later)
    assert (len(first.run_ids), first.bytes_freed, first.bytes_left) == (2, 200, 100)
    assert await keys(place) == {KEY, "not-a-run/notes.txt"}
    old = await prune_place(place, Limits(older_than=timedelta(days=30), max_bytes=None), now=later)
    assert old.run_ids == (RUN.format(1),)
    assert await keys(place) == {"not-a-run/notes.txt"}


async def test_a_bucket_that_is_not_there_is_refused_and_a_server_that_is_not_there_unavailable(
    s3: S3Server, bucket_url: str
) -> None:
    with pytest.raises(EvidenceRefused, match="NoSuchBucket"):
        await place_at(s3.url("no-such-bucket")).check()
    with pytest.raises(EvidenceUnavailable, match="cannot be used for evidence") as away:
        await place_at("s3://bucket/runs?endpoint=http://127.0.0.1:1").check()
    assert not isinstance(away.value, EvidenceRefused)


async def test_a_folder_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(EvidenceUnavailable, match="cannot be used for evidence"):
        await place_at(f"{tmp_path}/file/evidence").check()


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("s3://KEY:canary-secret@bucket/runs", "must have no user or password"),
        ("s3://bucket/runs?secret_key=canary-secret", "must name a variable of the environment"),
        ("s3://bucket/runs?secret_key=env:NOT_SET_HERE", "which is not set"),
        ("s3://bucket/runs?endpoint=https://canary-secret@host", "endpoint must be a URL"),
        ("s3://bucket/runs?password=canary-secret", "has no option password"),
        ("s3:///runs", "must name a bucket"),
        ("s3://bucket/../other", "its prefix"),
    ],
)
def test_a_wrong_bucket_is_refused_and_no_secret_repeated(url: str, wrong: str) -> None:
    with pytest.raises(InputError, match="cannot be used") as refused:
        parse_bucket(url, {})
    assert wrong in str(refused.value)
    assert "canary-secret" not in str(refused.value)


@pytest.mark.parametrize("text", ["evidence", "ftp://host/folder", "canary-secret"])
def test_a_place_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="cannot be used") as refused:
        open_place(replace(settings.load({}).browsers, evidence=text))
    assert "canary-secret" not in str(refused.value)


def test_credentials_come_from_the_environment_and_are_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"BUCKET_SECRET": "canary-secret", "AWS_ACCESS_KEY_ID": "canary-key"}
    bucket = parse_bucket("s3://bucket/runs?secret_key=env:BUCKET_SECRET&region=eu-west-1", environ)
    assert bucket.credentials == {"access_key_id": "canary-key", "secret_access_key": "canary-secret"}
    assert (bucket.location, bucket.region) == ("s3://bucket/runs", "eu-west-1")
    assert "canary" not in repr(bucket)
    with pytest.raises(InputError, match="must both be set"):
        parse_bucket("s3://bucket", {"AWS_ACCESS_KEY_ID": "canary-key"})
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    redactor = Redactor()
    open_place(replace(settings.load({}).browsers, evidence="s3://bucket?secret_key=env:BUCKET_SECRET"), redactor)
    assert redactor.text("it is canary-secret") == "it is [redacted]"


def test_runs_are_named_as_keys_may_be() -> None:
    assert is_id(RUN.format(1))
