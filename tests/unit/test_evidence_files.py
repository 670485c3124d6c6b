"""Evidence files: what may be written, that it is whole, and what pruning leaves alone."""

import errno
import hashlib
import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from leasekeeper.errors import InputError
from leasekeeper.evidence import files
from leasekeeper.evidence.files import EvidenceFolder, EvidenceNotSaved, prune_evidence

DAY = 86_400.0


@pytest.fixture
def folder(tmp_path: Path) -> EvidenceFolder:
    folder = EvidenceFolder(tmp_path / "runs", "run_1")
    folder.create()
    return folder


def test_an_artifact_is_a_file_with_size_hash_and_type(folder: EvidenceFolder) -> None:
    artifact = folder.write("last.png", b"image")
    expected = {
        "name": "last.png",
        "size": 5,
        "sha256": hashlib.sha256(b"image").hexdigest(),
        "media_type": "image/png",
    }
    assert artifact.as_json() == expected
    assert (folder.path / "last.png").read_bytes() == b"image"
    assert folder.verify(artifact)


def test_only_the_owner_can_read_it(folder: EvidenceFolder) -> None:
    folder.write("a", b"")
    assert [path.stat().st_mode & 0o777 for path in (folder.path, folder.path / "a")] == [0o700, 0o600]


def test_a_folder_that_is_there_already_is_used(folder: EvidenceFolder) -> None:
    (folder.path / "report.json").write_text("{}")
    folder.create()
    assert folder.adopt("report.json") is not None


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs" / "run_1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EvidenceNotSaved, match="it is a symbolic link"):
        EvidenceFolder(tmp_path / "runs", "run_1").create()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "a/b", "/etc/passwd", ".hidden", "a\0b", "a\nb", "x" * 129, "ä"]
)
def test_a_name_that_is_no_id_is_refused(folder: EvidenceFolder, name: str) -> None:
    with pytest.raises(InputError, match="cannot name"):
        folder.write(name, b"")
    with pytest.raises(InputError, match="cannot name"):
        EvidenceFolder(folder.path, name)
    assert list(folder.path.iterdir()) == []


def test_a_name_is_used_once(folder: EvidenceFolder) -> None:
    folder.write("a", b"first")
    with pytest.raises(InputError, match="already has evidence named a"):
        folder.write("a", b"second")
    assert (folder.path / "a").read_bytes() == b"first"


def test_of_two_that_want_a_name_at_once_one_gets_it(folder: EvidenceFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[files.Artifact] = []
    refused: list[str] = []

    def write(content: bytes) -> None:
        try:
            kept.append(folder.write("a", content))
        except InputError as error:
            refused.append(str(error))

    other = threading.Thread(target=write, args=(b"second",))
    sync = os.fsync

    def meanwhile(handle: int) -> None:
        if not other.ident:
            other.start()
            other.join(0.2)
        sync(handle)

    monkeypatch.setattr(os, "fsync", meanwhile)
    write(b"first")
    other.join()
    assert (len(kept), len(refused)) == (1, 1)
    assert folder.verify(kept[0])


def test_one_file_and_one_run_have_a_limit(folder: EvidenceFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 10)
    monkeypatch.setattr(files, "MAX_ARTIFACTS", 2)
    with pytest.raises(InputError, match="maximum for one file"):
        folder.write("a", b"x" * 11)
    folder.write("a", b"x" * 10)
    folder.write("b", b"")
    with pytest.raises(InputError, match="already has 2 evidence files"):
        folder.write("c", b"")


def test_a_file_is_copied_whole(folder: EvidenceFolder, tmp_path: Path) -> None:
    content = os.urandom(3 * 1024 * 1024 + 1)
    (tmp_path / "source").write_bytes(content)
    artifact = folder.copy("video.webm", tmp_path / "source")
    assert (artifact.size, artifact.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert (tmp_path / "source").exists()


def test_a_file_that_is_not_there_cannot_be_copied(folder: EvidenceFolder, tmp_path: Path) -> None:
    with pytest.raises(EvidenceNotSaved, match="evidence a could not be saved"):
        folder.copy("a", tmp_path / "nowhere")
    with pytest.raises(InputError, match="is not a file"):
        folder.copy("a", Path("/dev/null"))


def test_what_the_keeper_left_is_adopted(folder: EvidenceFolder) -> None:
    (folder.path / "last.png").write_bytes(b"image")
    artifact = folder.adopt("last.png")
    assert artifact is not None
    assert folder.verify(artifact)
    assert folder.adopt("report.json") is None


def test_a_link_is_not_adopted(folder: EvidenceFolder) -> None:
    (folder.path / "last.png").symlink_to("/etc/passwd")
    with pytest.raises(EvidenceNotSaved):
        folder.adopt("last.png")


def test_what_is_not_a_file_is_not_waited_for(folder: EvidenceFolder) -> None:
    artifact = folder.write("a", b"")
    for name in ("a", "b"):
        (folder.path / name).unlink(missing_ok=True)
        os.mkfifo(folder.path / name)
    assert not folder.verify(artifact)
    with pytest.raises(InputError, match="is not a file"):
        folder.adopt("b")
    with pytest.raises(InputError, match="is not a file"):
        folder.copy("c", folder.path / "b")


def test_a_file_that_changed_or_vanished_is_noticed(folder: EvidenceFolder) -> None:
    artifact = folder.write("a", b"first")
    (folder.path / "a").write_bytes(b"other")
    assert not folder.verify(artifact)
    (folder.path / "a").unlink()
    assert not folder.verify(artifact)


def test_a_disk_that_refuses_leaves_no_part_behind(folder: EvidenceFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(EvidenceNotSaved, match="evidence a could not be saved: Input/output error") as raised:
        folder.write("a", b"x")
    assert raised.value.errno == errno.EIO
    assert list(folder.path.iterdir()) == []


def test_a_full_disk_says_what_to_do(folder: EvidenceFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(EvidenceNotSaved) as raised:
        folder.write("a", b"x")
    assert str(raised.value) == (
        "evidence a could not be saved: No space left on device; make room where LEASEKEEPER_DATA_DIR is"
    )


def test_a_folder_that_was_never_made_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(EvidenceNotSaved):
        EvidenceFolder(tmp_path, "run_1").write("a", b"")


def run_id(number: int) -> str:
    """An id as stores give it."""
    return f"01a1e1a7-d9fa-7081-988b-{number:012}"


OLD, NEW, USED = (run_id(number) for number in range(3))


def run_folder(root: Path, name: str, *, days: float, size: int = 100) -> None:
    """A run's folder that last changed so many days ago."""
    folder = EvidenceFolder(root, name)
    folder.create()
    folder.write("a", b"x" * size)
    at = time.time() - days * DAY
    os.utime(folder.path / "a", (at, at))
    os.utime(folder.path, (at, at))


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_old_evidence_is_deleted(tmp_path: Path) -> None:
    run_folder(tmp_path, OLD, days=40)
    run_folder(tmp_path, NEW, days=20)
    pruned = prune_evidence(tmp_path, older_than=timedelta(days=30), max_bytes=None)
    assert (pruned.run_ids, pruned.bytes_freed, pruned.bytes_left) == ((OLD,), 100, 100)
    assert names(tmp_path) == [NEW]


def test_the_oldest_evidence_goes_when_there_is_too_much(tmp_path: Path) -> None:
    for days in (1, 3, 2):
        run_folder(tmp_path, run_id(days), days=days)
    assert prune_evidence(tmp_path, older_than=None, max_bytes=250).run_ids == (run_id(3),)
    assert prune_evidence(tmp_path, older_than=None, max_bytes=100).run_ids == (run_id(2),)
    assert names(tmp_path) == [run_id(1)]


def test_runs_in_use_and_recent_ones_are_never_deleted(tmp_path: Path) -> None:
    run_folder(tmp_path, USED, days=90)
    run_folder(tmp_path, NEW, days=0)
    pruned = prune_evidence(tmp_path, older_than=timedelta(0), max_bytes=0, in_use={USED})
    assert pruned.run_ids == ()
    assert names(tmp_path) == [NEW, USED]


def test_only_folders_of_runs_are_touched(tmp_path: Path) -> None:
    root, outside = tmp_path / "runs", tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    run_folder(root, OLD, days=40)
    run_folder(root, "experiment-1", days=40)
    (root / USED).symlink_to(outside)
    (root / OLD / "link").symlink_to(outside)
    (root / NEW).write_text("x")
    (root / ".hidden").mkdir()
    os.utime(root / OLD, (0, 0))
    os.utime(root / OLD / "link", (0, 0), follow_symlinks=False)
    prune_evidence(root, older_than=timedelta(days=1), max_bytes=0)
    assert names(root) == [".hidden", NEW, USED, "experiment-1"]
    assert (outside / "precious").exists()


@pytest.mark.parametrize("step", ["looked at", "renamed"])
def test_a_folder_that_cannot_be_deleted_keeps_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    run_folder(tmp_path, OLD, days=90)
    run_folder(tmp_path, NEW, days=40)
    look, rename = files._folder, Path.rename

    def refuse(name: str) -> None:
        if name == OLD:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def looked_at(entry: os.DirEntry[str]) -> tuple[float, str, int]:
        refuse(entry.name)
        return look(entry)

    def renamed(path: Path, target: Path) -> Path:
        refuse(path.name)
        return rename(path, target)

    if step == "looked at":
        monkeypatch.setattr(files, "_folder", looked_at)
    else:
        monkeypatch.setattr(Path, "rename", renamed)
    assert prune_evidence(tmp_path, older_than=timedelta(days=30), max_bytes=None).run_ids == (NEW,)
    assert names(tmp_path) == [OLD]


def test_nothing_to_prune_is_no_error(tmp_path: Path) -> None:
    assert prune_evidence(tmp_path / "nowhere", older_than=timedelta(0), max_bytes=0).run_ids == ()


def test_what_an_interrupted_pruning_left_is_deleted_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".gone-1").mkdir()
    (tmp_path / ".gone-1" / "a").write_text("x")
    prune_evidence(tmp_path, older_than=None, max_bytes=None)
    assert names(tmp_path) == []


def test_two_prunings_at_once_delete_each_folder_once(tmp_path: Path) -> None:
    for number in range(60):
        run_folder(tmp_path, run_id(number), days=40 + number)
    deleted: list[str] = []
    start = threading.Barrier(4)

    def prune() -> None:
        start.wait()
        deleted.extend(prune_evidence(tmp_path, older_than=timedelta(days=30), max_bytes=None).run_ids)

    threads = [threading.Thread(target=prune) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(deleted) == sorted(run_id(number) for number in range(60))
    assert names(tmp_path) == []
