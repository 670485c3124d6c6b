"""Settings: defaults, environment, overrides, and every wrong one named at once."""

from datetime import timedelta

import pytest

from leasekeeper.config import load
from leasekeeper.core.policy import Policy, Retention
from leasekeeper.errors import InputError
from leasekeeper.settings_table import PREFIX, SETTINGS
from tests.unit.records import seconds


def faults(environ: dict[str, str], **overrides: str | float) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        load(environ, **overrides)
    return {problem.where: problem.message for problem in caught.value.problems}


def test_without_settings_the_policy_is_that_of_the_core() -> None:
    config = load({})
    assert config.policy == Policy()
    assert config.retention == Retention()
    assert config.store == "sqlite:///leasekeeper.db"
    assert (config.sweep_every, config.poll_every, config.clock_tolerance) == (
        seconds(5),
        seconds(2),
        seconds(5),
    )


def test_every_setting_can_be_set_from_the_environment() -> None:
    config = load(
        {
            "LEASEKEEPER_STORE": "postgresql://db/leasekeeper",
            "LEASEKEEPER_LEASE_TTL": "120",
            "LEASEKEEPER_RENEW_EVERY": "20",
            "LEASEKEEPER_HOLDER_STOPS_AFTER": "90.5",
            "LEASEKEEPER_LOCK_DELAY": "0",
            "LEASEKEEPER_SWEEP_EVERY": "1",
            "LEASEKEEPER_POLL_EVERY": "0.5",
            "LEASEKEEPER_WORKER_TTL": "30",
            "LEASEKEEPER_LONG_RUN": "60",
            "LEASEKEEPER_BACKOFF_FIRST": "1",
            "LEASEKEEPER_BACKOFF_FACTOR": "3",
            "LEASEKEEPER_BACKOFF_MAX": "10",
            "LEASEKEEPER_CLOCK_TOLERANCE": "2",
            "LEASEKEEPER_STRICT_TASKS": "1",
            "LEASEKEEPER_KEEP_JOBS": "1",
            "LEASEKEEPER_KEEP_EVENTS": "0",
        }
    )
    assert config.store == "postgresql://db/leasekeeper"
    timing, backoff = config.policy.timing, config.policy.backoff
    assert (timing.ttl, timing.renew_every) == (seconds(120), seconds(20))
    assert (timing.holder_stops_after, timing.lock_delay) == (seconds(90.5), seconds(0))
    assert (config.sweep_every, config.poll_every, config.clock_tolerance) == (
        seconds(1),
        seconds(0.5),
        seconds(2),
    )
    assert (config.policy.worker_ttl, config.policy.long_run) == (seconds(30), seconds(60))
    assert (backoff.first, backoff.factor, backoff.max) == (seconds(1), 3.0, seconds(10))
    assert config.policy.strict_tasks is True
    assert config.retention == Retention(jobs=timedelta(days=1), events=None)


def test_an_argument_goes_before_the_environment() -> None:
    environ = {"LEASEKEEPER_LEASE_TTL": "120", "LEASEKEEPER_STORE": "sqlite:///a.db"}
    config = load(environ, lease_ttl=90, store="sqlite:///b.db")
    assert (config.policy.timing.ttl, config.store) == (seconds(90), "sqlite:///b.db")


@pytest.mark.parametrize("value", ["", "soon", "nan", "inf", "-1", "0", "1e99"])
def test_a_wrong_number_is_refused_with_what_is_allowed(value: str) -> None:
    found = faults({"LEASEKEEPER_LEASE_TTL": value})
    assert found == {"LEASEKEEPER_LEASE_TTL": f"{value!r} is not a number (seconds) from 1 to 1e+09"}


def test_a_number_above_its_bound_is_refused_with_the_bound() -> None:
    assert "from 1 to 100" in faults({"LEASEKEEPER_BACKOFF_FACTOR": "101"})["LEASEKEEPER_BACKOFF_FACTOR"]
    assert "from 0 to 1" in faults({"LEASEKEEPER_STRICT_TASKS": "2"})["LEASEKEEPER_STRICT_TASKS"]


def test_all_wrong_settings_are_named_at_once() -> None:
    found = faults({"LEASEKEEPER_LEASE_TTL": "x", "LEASEKEEPER_POLL_EVERY": "y"}, nonsense=1)
    assert list(found) == ["LEASEKEEPER_LEASE_TTL", "LEASEKEEPER_POLL_EVERY", "nonsense"]
    assert found["nonsense"].startswith("no such setting; there are: store, token, store_ca")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LEASEKEEPER_STROE", "LEASEKEEPER_STORE"),
        ("LEASEKEEPER_LEASE_TLL", "LEASEKEEPER_LEASE_TTL"),
        ("LEASEKEEPER_LEASES_TTL", "LEASEKEEPER_LEASE_TTL"),
        ("LEASEKEEPER_STORES", "LEASEKEEPER_STORE"),
        ("LEASEKEEPER_BROWSER_ARG", "LEASEKEEPER_BROWSER_ARGS"),
    ],
)
def test_a_variable_that_is_nearly_a_setting_is_refused_with_what_was_meant(name: str, meant: str) -> None:
    assert faults({name: "1"}) == {name: f"no such setting; did you mean {meant}?"}


@pytest.mark.parametrize(
    "name", ["LEASEKEEPER_PROXY_US", "LEASEKEEPER_SHOP_PASSWORD", "LEASEKEEPER_", "STORE", "LEASEKEEPER"]
)
def test_variables_of_others_are_left_alone(name: str) -> None:
    assert load({name: "1"}) == load({})


@pytest.mark.parametrize(
    ("renew", "stops", "ttl"), [(15, 60, 60), (15, 61, 60), (40, 40, 60), (50, 40, 60), (15, 40, 30)]
)
def test_a_holder_must_stop_after_it_renews_and_before_its_lease_ends(renew: float, stops: float, ttl: float) -> None:
    found = faults({}, renew_every=renew, holder_stops_after=stops, lease_ttl=ttl)
    assert "between renew_every and lease_ttl" in found["LEASEKEEPER_HOLDER_STOPS_AFTER"]


def test_one_call_that_hangs_must_not_take_all_the_time_of_a_lease() -> None:
    found = faults({}, renew_every=3, holder_stops_after=10, store_timeout=5)
    assert "under half of holder_stops_after (10)" in found["LEASEKEEPER_STORE_TIMEOUT"]
    assert load({}, renew_every=3, holder_stops_after=10, store_timeout=4.9).policy.store_timeout == seconds(4.9)
    assert load({}, renew_every=3, holder_stops_after=10).policy.store_timeout == seconds(15), "nobody chose it"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_has_a_unit_a_line_of_docs_and_a_sound_default(setting: object) -> None:
    (found,) = [known for known in SETTINGS if known is setting]
    assert found.unit
    assert found.doc
    if isinstance(found.default, float):
        assert found.minimum <= found.default <= found.maximum


def test_settings_have_different_names() -> None:
    names = [setting.name for setting in SETTINGS]
    assert len(names) == len(set(names))
    assert PREFIX == "LEASEKEEPER_"


def test_a_data_folder_must_be_named() -> None:
    assert faults({"LEASEKEEPER_DATA_DIR": ""}).keys() == {"LEASEKEEPER_DATA_DIR"}


def test_less_than_a_megabyte_of_evidence_is_a_bound() -> None:
    assert load({"LEASEKEEPER_KEEP_EVIDENCE_MB": "0.5"}).browsers.keep_evidence_bytes == 500_000
    assert load({"LEASEKEEPER_KEEP_EVIDENCE_MB": "0"}).browsers.keep_evidence_bytes is None
