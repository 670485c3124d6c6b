"""The settings file: which one counts, what wins over it, what is wrong with it, and where relative paths lead."""

import logging
import os
from pathlib import Path

import pytest

from leasekeeper import config
from leasekeeper.config import Source, effective, load
from leasekeeper.errors import InputError
from leasekeeper.settings_table import SETTINGS
from tests.unit.records import seconds


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def write(folder: Path, text: str, name: str = "leasekeeper.toml") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def faults(environ: dict[str, str]) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        load(environ)
    return {problem.where: problem.message for problem in caught.value.problems}


def value(environ: dict[str, str], name: str, **overrides: str | float) -> tuple[object, Source]:
    (row,) = [row for row in effective(environ, **overrides).rows if row.setting.name == name]
    return row.value, row.source


def test_without_a_file_every_setting_is_at_its_default() -> None:
    found = effective({})
    assert found.file is None
    assert {row.source for row in found.rows} == {Source.DEFAULT}
    assert [row.setting for row in found.rows] == list(SETTINGS)


def test_every_setting_can_be_set_by_its_name_in_the_file(here: Path) -> None:
    bigger = {setting.name: setting.default + 1 for setting in SETTINGS if isinstance(setting.default, float)}
    numbers = {**bigger, "strict_tasks": 1}
    texts = {setting.name: f"/x/{setting.name}" for setting in SETTINGS if isinstance(setting.default, str)}
    texts["drivers"] = "null"
    lines = [f"{name} = {number}" for name, number in numbers.items()]
    write(here, "\n".join([*lines, *(f'{name} = "{text}"' for name, text in texts.items())]))
    found = effective({})
    assert {row.source for row in found.rows} == {Source.FILE}
    assert {row.setting.name: row.value for row in found.rows} == {**numbers, **texts}


def test_an_argument_wins_over_the_environment_and_that_over_the_file(here: Path) -> None:
    write(here, "lease_ttl = 100\npoll_every = 4\nsweep_every = 9\n")
    environ = {"LEASEKEEPER_LEASE_TTL": "110", "LEASEKEEPER_POLL_EVERY": "3"}
    assert value(environ, "lease_ttl", lease_ttl=120) == (120, Source.ARGUMENT)
    assert value(environ, "poll_every", lease_ttl=120) == (3, Source.ENVIRONMENT)
    assert value(environ, "sweep_every", lease_ttl=120) == (9, Source.FILE)
    assert value(environ, "lock_delay") == (15, Source.DEFAULT)
    assert load(environ).sweep_every == seconds(9)


def test_a_named_file_goes_before_the_one_beside_the_store_and_that_before_the_one_here(
    here: Path, tmp_path: Path
) -> None:
    named = write(tmp_path, "poll_every = 1\n", "own.toml")
    beside = write(tmp_path / "shop", "poll_every = 2\n")
    local = write(here, "poll_every = 3\n")
    store = f"sqlite:///{tmp_path}/shop/leasekeeper.db"
    environ = {"LEASEKEEPER_CONFIG": str(named), "LEASEKEEPER_STORE": store}
    assert (effective(environ).file, value(environ, "poll_every")[0]) == (named, 1)
    environ["LEASEKEEPER_CONFIG"] = ""
    assert (effective(environ).file, value(environ, "poll_every")[0]) == (beside, 2)
    assert effective({}, store=store).file == beside
    beside.unlink()
    assert (effective(environ).file, value(environ, "poll_every")[0]) == (local, 3)
    assert effective({"LEASEKEEPER_STORE": "postgresql://db/leasekeeper"}).file == local


def test_a_file_that_is_named_must_be_there(here: Path) -> None:
    with pytest.raises(InputError, match=r"own\.toml cannot be read: No such file or directory"):
        load({"LEASEKEEPER_CONFIG": "own.toml"})


@pytest.mark.parametrize("text", ["lease_ttl = \n", "a = 1\na = 2\n", "\x00"])
def test_a_file_that_is_not_toml_is_refused_by_name(here: Path, text: str) -> None:
    write(here, text)
    with pytest.raises(InputError, match=r"leasekeeper\.toml is not TOML: "):
        load({})


def test_an_unknown_name_is_refused_with_the_nearest_and_all_faults_are_named_at_once(here: Path) -> None:
    path = write(
        here, 'lease_tll = 1\nqqq = "a"\nstore = 3\nwarm_runs = "2"\npoll_every = true\nwarm_age = -1\n[lease]\n'
    )
    assert faults({}) == {
        f"{path}: lease_tll": "no such setting; did you mean lease_ttl?",
        f"{path}: qqq": "no such setting",
        f"{path}: lease": "no such setting; did you mean lease_ttl?",
        f"{path}: store": "must be text in quotes",
        f"{path}: warm_runs": "must be a number (runs)",
        f"{path}: poll_every": "must be a number (seconds)",
        f"{path}: warm_age": "-1.0 is not a number (seconds) from 0 to 1e+09",
    }


def test_a_switch_may_be_true_or_false(here: Path) -> None:
    write(here, "strict_tasks = true\n")
    assert load({}).policy.strict_tasks is True


def test_paths_in_the_file_are_relative_to_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "shop", 'store = "sqlite:///db/a.db"\ndata_dir = "../data"\nbrowser = "bin/chrome"\n')
    config = load({"LEASEKEEPER_CONFIG": str(path)})
    assert config.store == f"sqlite:///{tmp_path}/shop/db/a.db"
    assert config.browsers.data_dir == f"{tmp_path}/data"
    assert config.browsers.browser == f"{tmp_path}/shop/bin/chrome"


def test_a_program_and_a_server_in_the_file_are_no_paths(here: Path) -> None:
    write(here, 'store = "postgresql://db/leasekeeper"\nbrowser = "google-chrome"\n')
    config = load({})
    assert (config.store, config.browsers.browser) == ("postgresql://db/leasekeeper", "google-chrome")


def test_the_data_directory_is_beside_the_sqlite_file_wherever_the_program_is_started(
    here: Path, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/shop/leasekeeper.db"
    assert load({"LEASEKEEPER_STORE": store}).browsers.data_dir == f"{tmp_path}/shop/leasekeeper-data"
    assert load({}, store=store).browsers.data_dir == f"{tmp_path}/shop/leasekeeper-data"
    assert load({}).browsers.data_dir == f"{here}/leasekeeper-data"


def test_a_link_to_the_sqlite_file_leads_to_the_directory_of_the_file(here: Path, tmp_path: Path) -> None:
    write(tmp_path / "shop", "", "leasekeeper.db")
    (here / "link.db").symlink_to(tmp_path / "shop" / "leasekeeper.db")
    assert load({}, store="sqlite:///link.db").browsers.data_dir == f"{tmp_path}/shop/leasekeeper-data"


def test_without_a_sqlite_file_the_data_directory_is_beside_the_settings_file(here: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "shop", 'store = "postgresql://db/leasekeeper"\n')
    assert load({"LEASEKEEPER_CONFIG": str(path)}).browsers.data_dir == f"{tmp_path}/shop/leasekeeper-data"
    assert load({}, store="postgresql://db/leasekeeper").browsers.data_dir == f"{here}/leasekeeper-data"


def test_a_data_directory_of_the_environment_is_relative_to_the_working_directory(here: Path, tmp_path: Path) -> None:
    environ = {"LEASEKEEPER_DATA_DIR": "data", "LEASEKEEPER_STORE": f"sqlite:///{tmp_path}/shop/leasekeeper.db"}
    assert load(environ).browsers.data_dir == f"{here}/data"


def test_a_data_directory_in_the_file_must_have_a_name(here: Path) -> None:
    write(here, 'data_dir = ""\n')
    assert faults({}).keys() == {"LEASEKEEPER_DATA_DIR"}


def test_a_variable_that_is_no_setting_is_warned_about_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "_warned", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            load({"LEASEKEEPER_PROXY_US": "a secret", "LEASEKEEPER_CONFIG": os.devnull, "LEASEKEEPER_KEEPER": "x"})
    (message,) = caplog.messages
    assert message.startswith("LEASEKEEPER_PROXY_US is not a setting, and is ignored")


def test_a_secret_shows_in_no_repr(here: Path) -> None:
    write(here, 'webhook_secret = "whsec_123"\n')
    assert "whsec_123" not in repr(effective({}))
