"""Which errors are the machine's: everything else stays the job's own failure."""

import errno

import pytest

from leasekeeper.core.machine import ERROR_NUMBERS, TEXTS, Trouble, trouble_of


@pytest.mark.parametrize(
    ("number", "trouble"),
    [
        (errno.ENOSPC, Trouble.DISK_FULL),
        (errno.EDQUOT, Trouble.DISK_FULL),
        (errno.EROFS, Trouble.DISK_READ_ONLY),
        (errno.ENOMEM, Trouble.NO_MEMORY),
        (errno.EMFILE, Trouble.TOO_MANY_FILES),
        (errno.ENFILE, Trouble.TOO_MANY_FILES),
        (errno.EAGAIN, Trouble.TOO_MANY_PROCESSES),
        (errno.EACCES, None),
        (errno.ENOENT, None),
        (errno.EPIPE, None),
        (errno.ECONNREFUSED, None),
    ],
)
def test_an_error_number_decides_alone(number: int, trouble: Trouble | None) -> None:
    assert trouble_of(number, "No space left on device") is trouble


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("BrowserType.launch: spawn /usr/bin/chromium ENOMEM", Trouble.NO_MEMORY),
        ("[pid=7][err] Missing X server or $DISPLAY", Trouble.NO_DISPLAY),
        ("evidence final.png could not be saved: No space left on device", Trouble.DISK_FULL),
        ("RuntimeError: can't start new thread", Trouble.TOO_MANY_PROCESSES),
        ("BrowserType.launch: Target page, context or browser has been closed", None),
        ("net::ERR_CONNECTION_REFUSED", None),
        ("", None),
    ],
)
def test_a_text_decides_where_there_is_no_number(text: str, trouble: Trouble | None) -> None:
    assert trouble_of(None, text) is trouble


def test_every_trouble_that_an_error_can_name_has_one() -> None:
    found_otherwise = {Trouble.NO_BROWSER, Trouble.NO_PROFILES, Trouble.NO_EVIDENCE, Trouble.DATA_DIR_UNUSABLE}
    assert {*ERROR_NUMBERS.values(), *(trouble for _, trouble in TEXTS)} == set(Trouble) - found_otherwise
