"""URLs of stores: a password that would be read as a host is refused before anybody tells a piece of it."""

import pytest

from leasekeeper.errors import InputError
from leasekeeper.stores import split


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@h/db",
        "postgresql://u:p@h:5432/db?user=a@b",
        "postgresql://u:p%40@h:1/db",
        "postgresql://u:p@h1:1,h2:2/db",
        "postgresql://u@h:5432/db",
        "postgresql://127.0.0.1:5432/db?user=a@b",
        "postgresql:///db?host=/tmp&user=a@b",
        "postgresql://u:p@[::1]:5432/db?x=a@b",
    ],
)
def test_a_url_that_can_be_read(url: str) -> None:
    assert split(url) == ("postgres", url)


@pytest.mark.parametrize("password", ["s3cret@1", "s3cret#1@2", "s3cret/1", "s3cret?1", "1@s3cret"])
def test_a_password_that_would_be_read_as_a_host(password: str) -> None:
    with pytest.raises(InputError, match="%40 for @") as refused:
        split(f"postgresql://u:{password}@127.0.0.1:5432/db")
    assert "s3cret" not in str(refused.value)
