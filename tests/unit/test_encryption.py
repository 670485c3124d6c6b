"""Encryption of secrets: keys, rotation, tampering, and that nothing shows a key or a value."""

import base64
from pathlib import Path

import pytest

from leasekeeper import config
from leasekeeper.config import SecretConfig
from leasekeeper.core.secrets import LeaseSecret, SealedSecret, check_value, secret_name
from leasekeeper.encryption import Keyring, new_key, open_lease_secret, read_keyring
from leasekeeper.errors import InputError, LeasekeeperError, SecretKeyMissing, SecretKeyWrong, SecretUnusable

VALUE = "user:hunter2-ünïcode"
OLD, NEW = new_key(), new_key()


def ring(*keys: str) -> Keyring:
    return read_keyring(SecretConfig(keys=" ".join(keys)))


def key_file(path: Path, text: str, mode: int = 0o600) -> SecretConfig:
    path.write_text(text)
    path.chmod(mode)
    return SecretConfig(file=str(path))


def tampered(secret: SealedSecret, place: int) -> SealedSecret:
    data = bytearray(base64.b64decode(secret.sealed))
    data[place] ^= 1
    return SealedSecret(name=secret.name, key_id=secret.key_id, sealed=base64.b64encode(data).decode())


def test_what_was_sealed_is_opened_by_the_same_key() -> None:
    sealed = ring(OLD).seal("us", VALUE)
    assert ring(OLD).open(sealed) == VALUE
    assert sealed.key_id == ring(OLD).current


def test_the_same_value_is_sealed_differently_each_time() -> None:
    sealed = [base64.b64decode(ring(OLD).seal("us", VALUE).sealed) for _ in range(50)]
    assert len({data[:12] for data in sealed}) == len({data[12:] for data in sealed}) == 50


def test_a_previous_key_opens_and_the_current_one_seals() -> None:
    both = ring(NEW, OLD)
    assert both.open(ring(OLD).seal("us", VALUE)) == VALUE
    assert both.seal("us", VALUE).key_id == ring(NEW).current != ring(OLD).current


def test_another_key_opens_nothing_and_is_named() -> None:
    sealed = ring(OLD).seal("us", VALUE)
    with pytest.raises(SecretKeyWrong) as raised:
        ring(NEW).open(sealed)
    assert raised.value.code == "SECRET_KEY_WRONG"
    assert ring(OLD).current in raised.value.message


@pytest.mark.parametrize("place", [0, 11, 12, -17, -1])
def test_a_changed_bit_is_noticed(place: int) -> None:
    with pytest.raises(SecretKeyWrong, match="was changed"):
        ring(OLD).open(tampered(ring(OLD).seal("us", VALUE), place))


@pytest.mark.parametrize("sealed", ["", "AAAA", "not base64!", base64.b64encode(bytes(12)).decode()])
def test_what_was_never_sealed_is_refused(sealed: str) -> None:
    with pytest.raises(SecretKeyWrong):
        ring(OLD).open(SealedSecret(name="us", key_id=ring(OLD).current, sealed=sealed))


def test_a_ciphertext_belongs_to_its_name() -> None:
    sealed = ring(OLD).seal("cheap", VALUE)
    with pytest.raises(SecretKeyWrong):
        ring(OLD).open(SealedSecret(name="precious", key_id=sealed.key_id, sealed=sealed.sealed))


def test_without_a_key_the_message_says_how_to_set_one() -> None:
    with pytest.raises(SecretKeyMissing, match="LEASEKEEPER_SECRET_KEY_FILE") as raised:
        ring()
    assert raised.value.code == "SECRET_KEY_MISSING"


@pytest.mark.parametrize(
    "wrong",
    ["hunter2", OLD[5:], OLD[:-8], OLD + "AAAA", "lkey_", "lkey_!" + OLD[6:]],
    ids=["no key", "no prefix", "short", "long", "empty", "no base64"],
)
def test_a_key_that_is_wrong_is_reported_by_its_place_and_not_shown(wrong: str) -> None:
    with pytest.raises(InputError, match="key 2 of LEASEKEEPER_SECRET_KEY") as raised:
        ring(OLD, wrong)
    assert wrong not in raised.value.message or len(wrong) < 6


def test_a_ring_has_a_bounded_number_of_keys() -> None:
    assert len(ring(*(new_key() for _ in range(8))).keys) == 8
    with pytest.raises(InputError, match="at most 8"):
        ring(*(new_key() for _ in range(9)))


def test_keys_come_from_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    both = read_keyring(key_file(tmp_path / "keys", f"{NEW}\n{OLD}\n"))
    assert list(both.keys) == [ring(NEW).current, ring(OLD).current]
    assert read_keyring(key_file(tmp_path / "sealed", NEW, 0o400)).current == ring(NEW).current


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o610, 0o604, 0o666])
def test_a_key_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(InputError, match="chmod 600") as raised:
        read_keyring(key_file(tmp_path / "keys", OLD, mode))
    assert OLD not in raised.value.message


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: cannot be read"):
        read_keyring(SecretConfig(file=str(tmp_path / "nowhere")))
    with pytest.raises(SecretKeyMissing):
        read_keyring(key_file(tmp_path / "empty", "\n"))


def test_one_place_for_keys_is_enough(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="set one of them"):
        read_keyring(SecretConfig(keys=OLD, file=str(tmp_path)))


def test_no_repr_shows_a_key_or_a_value() -> None:
    settings = config.load({"LEASEKEEPER_SECRET_KEY": OLD})
    sealed = ring(OLD).seal("us", VALUE)
    shown = repr((settings, ring(OLD), sealed, LeaseSecret(name="us", value=VALUE)))
    assert [text for text in (OLD, VALUE, sealed.sealed) if text in shown] == []


def test_a_key_in_the_wrong_setting_is_not_shown() -> None:
    with pytest.raises(InputError) as raised:
        config.load({"LEASEKEEPER_LEASE_TTL": OLD})
    assert OLD not in raised.value.message


def test_whoever_is_handed_a_plain_value_needs_no_key() -> None:
    assert open_lease_secret(LeaseSecret(name="us", value=VALUE), SecretConfig()) == VALUE
    sealed = ring(OLD).seal("us", VALUE)
    assert open_lease_secret(LeaseSecret(name="us", sealed=sealed), SecretConfig(keys=OLD)) == VALUE
    with pytest.raises(SecretKeyMissing):
        open_lease_secret(LeaseSecret(name="us", sealed=sealed), SecretConfig())
    with pytest.raises(SecretUnusable):
        open_lease_secret(LeaseSecret(name="us"), SecretConfig(keys=OLD))


@pytest.mark.parametrize("value", ["", "a\nb", "a\0b", "x" * 4_097, "\ud800"])
def test_a_value_that_cannot_be_kept_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(LeasekeeperError) as raised:
        check_value(value)
    assert not value or value not in raised.value.message


@pytest.mark.parametrize(
    ("reference", "name"), [(None, None), ("env:A", None), ("file:secret:x", None), ("secret:us", "us")]
)
def test_only_a_reference_to_a_secret_names_one(reference: str | None, name: str | None) -> None:
    assert secret_name(reference) == name
