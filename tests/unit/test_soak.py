"""What a soak keeps of a round that failed: why it failed, and everything that it left behind."""

from pathlib import Path

from tests.soak import keep


def test_all_that_a_failed_round_left_is_kept(tmp_path: Path) -> None:
    place, folder = tmp_path / "7", tmp_path / ".soak"
    place.mkdir()
    (place / "worker-1.jsonl").write_text("calls")
    (place / "soak.db").write_bytes(b"store")
    for found in ("ValueError: once", "ValueError: again"):
        kept = keep(found, 42, "0007-sqlite-chaos-5", place, folder)
        assert kept == folder / "42-0007-sqlite-chaos-5"
        assert {file.name for file in kept.iterdir()} == {"worker-1.jsonl", "soak.db", "failure.txt"}
        text = (kept / "failure.txt").read_text()
        assert "--seed 42" in text
        assert found in text
