"""Credentials by reference: where they may be kept, and that no error shows them."""

import os
from pathlib import Path

import pytest

from leasekeeper.browsers.secrets import resolve_credentials
from leasekeeper.core.browsers import Credentials
from leasekeeper.errors import InputError

SECRET = "hunter:2:secret"  # noqa: S105 - nobody's password


def written(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return f"file:{path}"


def test_credentials_come_from_the_environment() -> None:
    found = resolve_credentials("env:LOGIN", {"LOGIN": f"user:{SECRET}"})
    assert found == Credentials(username="user", password=SECRET)


def test_credentials_come_from_a_file(tmp_path: Path) -> None:
    assert resolve_credentials(written(tmp_path / "login", f"user:{SECRET}\n")) == Credentials(
        username="user", password=SECRET
    )


def test_no_reference_is_no_credentials() -> None:
    assert resolve_credentials(None) is None


def test_a_repr_shows_neither() -> None:
    assert repr(Credentials(username="user", password=SECRET)) == "Credentials()"


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602])
def test_a_file_that_everybody_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(InputError, match="chmod 600"):
        resolve_credentials(written(tmp_path / "login", f"user:{SECRET}", mode))


def test_a_group_may_read_it(tmp_path: Path) -> None:
    assert resolve_credentials(written(tmp_path / "login", f"user:{SECRET}", 0o640)) is not None


@pytest.mark.parametrize(
    "text", [SECRET.replace(":", ""), f":{SECRET}", "user:", "", f"user:{SECRET}\nmore", "x" * 5_000]
)
def test_what_is_not_user_and_password_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    for reference, environ in ((written(tmp_path / "login", text), {}), ("env:LOGIN", {"LOGIN": text[:4_000]})):
        with pytest.raises(InputError) as raised:
            resolve_credentials(reference, environ)
        assert "hunter" not in raised.value.message


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this worker has no environment variable LOGIN"):
        resolve_credentials("env:LOGIN", {})
    with pytest.raises(InputError, match="No such file or directory"):
        resolve_credentials(f"file:{tmp_path / 'nowhere'}")
    with pytest.raises(InputError, match=r"cannot be read|is not a file"):
        resolve_credentials(f"file:{tmp_path}")


@pytest.mark.parametrize("reference", [f"user:{SECRET}", SECRET, "env:", "file:", ""])
def test_a_secret_in_place_of_a_reference_is_refused_without_showing_it(reference: str) -> None:
    with pytest.raises(InputError) as raised:
        resolve_credentials(reference, {})
    assert "hunter" not in raised.value.message


def test_a_file_that_cannot_be_had_is_an_error_and_no_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(InputError, match="is not a file"):
        resolve_credentials(f"file:{tmp_path / 'pipe'}")
    with pytest.raises(InputError, match="home directory is not known"):
        resolve_credentials("file:~nobody-of-this-name/login")
