"""`leasekeeper settings` and `--config`: what is in force, where it comes from, and that it is the same everywhere."""

import json
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.settings_table import SETTINGS
from tests.cli.workplace import Workplace, in_terminal, process


def by_name(answer: Any) -> dict[str, Any]:
    return {item["name"]: item for item in answer["items"]}


def test_each_setting_is_shown_with_its_value_and_source(empty: Workplace) -> None:
    file = empty.directory / "leasekeeper.toml"
    file.write_text("poll_every = 4\nlease_ttl = 90\n")
    result = empty.cli("settings", "--json", env={"LEASEKEEPER_LEASE_TTL": "120"})
    answer = by_name(empty.json("settings"))
    assert list(answer) == [setting.name for setting in SETTINGS]
    assert (answer["poll_every"]["value"], answer["poll_every"]["source"]) == (4, "file")
    assert (answer["store"]["value"], answer["store"]["source"]) == (empty.url, "argument")
    assert (answer["lock_delay"]["value"], answer["lock_delay"]["source"]) == (15, "default")
    assert answer["data_dir"]["value"] == f"{empty.directory}/leasekeeper-data"
    assert empty.json("settings")["file"] == str(file)
    assert '"source": "environment"' in result.stdout
    assert [item["name"] for item in empty.json("settings", "--changed")["items"]] == [
        "store",
        "lease_ttl",
        "poll_every",
    ]


def test_secrets_are_not_shown(empty: Workplace) -> None:
    secret = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    (empty.directory / "leasekeeper.toml").write_text(
        f'webhook_secret = "{secret}"\nprobe_url = "https://probe.example/?key=s3cr3t-k3y"\n'
        'browser_args = "--proxy-server=http://me:s3cr3t-k3y@proxy.example"\n'
    )
    store = "postgresql://me:s3cr3t-k3y@db.example/leasekeeper"
    for arguments in (["settings"], ["settings", "--json"]):
        reported = empty.cli("--store", store, *arguments)
        assert reported.exit_code == 0, reported.output
        assert secret not in reported.output
        assert "s3cr3t-k3y" not in reported.output
        assert "db.example/leasekeeper" in reported.output
        assert "[redacted]" in reported.output


def test_the_table_fits_a_terminal(empty: Workplace) -> None:
    code, seen = in_terminal("settings", url=empty.url, columns=80)
    assert code == 0
    assert "settings file: none" in seen
    rows = seen.splitlines()[1:]
    assert max(len(line) for line in rows) <= 80 + len("\x1b[2m\x1b[0m") * 4
    assert any("holder_stops_after" in line and "default" in line for line in rows)


def test_a_file_is_named_before_or_after_the_command(empty: Workplace) -> None:
    file = empty.directory / "own.toml"
    file.write_text("poll_every = 7\n")
    for arguments in (["--config", str(file), "settings"], ["settings", "--config", str(file)]):
        assert by_name(empty.json(*arguments))["poll_every"]["source"] == "file"
    assert by_name(empty.json("settings"))["poll_every"]["source"] == "default"


def test_a_store_in_the_settings_file_is_the_store_of_every_command(place: Workplace, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('store = "sqlite:///leasekeeper.db"\n')
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = process("profiles", "--config", str(file), directory=elsewhere)
    assert done.returncode == 0, done.stderr
    assert "shop_us_main" in done.stdout
    assert list(elsewhere.iterdir()) == []


def test_a_wrong_setting_in_the_file_is_a_fault_of_every_command(empty: Workplace) -> None:
    (empty.directory / "leasekeeper.toml").write_text("lease_tll = 60\n")
    assert "leasekeeper.toml: lease_tll: no such setting; did you mean lease_ttl?" in empty.fails(2, "jobs")


def test_a_variable_that_is_no_setting_is_reported_on_stderr(empty: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEKEEPER_SHOP_PASSWORD", "s3cr3t-k3y")
    done = process("stats", "--json", url=empty.url)
    assert done.returncode == 0
    assert json.loads(done.stdout)
    assert done.stderr.count("LEASEKEEPER_SHOP_PASSWORD is not a setting, and is ignored") == 1
    assert "s3cr3t-k3y" not in done.stderr
