"""What Tab completes, as a shell asks for it: a process, its environment, its answer."""

import os
import socket
import sqlite3
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasekeeper.cli import INSTRUCTION, cli
from leasekeeper.cli.completing import SECONDS
from tests.cli.workplace import SECONDS_TO_ANSWER, Workplace, environment, program

SCRIPT = """\
eval "$(leasekeeper completion bash)"
COMP_WORDS=({words})
COMP_CWORD={number}
_leasekeeper_completion leasekeeper
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def ask(
    url: str, *words: str, asked_by: str = "bash", seconds: float = SECONDS_TO_ANSWER
) -> subprocess.CompletedProcess[str]:
    """Complete the last word, which may be empty."""
    asked = {
        INSTRUCTION: f"{asked_by}_complete",
        SECONDS: str(seconds),
        "COMP_WORDS": " ".join(("leasekeeper", *words)),
        "COMP_CWORD": str(len(words)),
    }
    return subprocess.run(
        program(), env=environment(url, **asked), capture_output=True, text=True, timeout=SECONDS_TO_ANSWER, check=False
    )


def offered(url: str, *words: str) -> list[str]:
    """The same without a process."""
    asked = {
        INSTRUCTION: "bash_complete",
        SECONDS: str(SECONDS_TO_ANSWER),
        "LEASEKEEPER_STORE": url,
        "COMP_WORDS": " ".join(("leasekeeper", *words)),
        "COMP_CWORD": str(len(words)),
    }
    with CliRunner(env=asked).isolation() as (printed, *_):
        with pytest.raises(SystemExit):
            cli.main(args=[])
        return [line.removeprefix("plain,") for line in printed.getvalue().decode().split()]


def completed(url: str, *words: str, seconds: float = SECONDS_TO_ANSWER) -> list[str]:
    """What bash is offered."""
    done = ask(url, *words, seconds=seconds)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.removeprefix("plain,") for line in done.stdout.split()]


def test_ids_of_every_kind_come_from_the_store(place: Workplace) -> None:
    place.start_worker()
    job = place.submit()
    assert offered(place.url, "profiles", "show", "tw") == ["twin_a", "twin_b"]
    assert offered(place.url, "accounts", "pause", "shop") == ["shop_de", "shop_us"]
    assert offered(place.url, "jobs", "show", job[:6]) == [job]
    assert offered(place.url, "submit", "b") == ["buy"]
    assert offered(place.url, "submit", "buy", "--profile", "shop_u") == ["shop_us_main"]
    assert offered(place.url, "jobs", "--account", "tw") == ["twins"]
    assert offered(place.url, "exec", "--profile", "tw") == ["twin_a", "twin_b"]
    assert offered(place.url, "workers", "drain", "") == ["w1"]
    assert offered(place.url, "pause", "--pool", "") == ["default"]
    assert offered(place.url, "why", "profile", "shop_d") == ["shop_de_main"]
    assert offered(place.url, "why", "job", job[:6]) == [job]
    assert completed(place.url, "open", "twin_b") == ["twin_b"]


def test_only_records_that_the_command_can_be_about_are_offered(place: Workplace) -> None:
    dead = place.dead_job("twin_a")
    place.submit(profile="twin_a")
    assert offered(place.url, "dlq", "retry", "") == [dead]


def test_a_noun_completes_its_verbs_and_the_options_of_its_list(place: Workplace) -> None:
    assert offered(place.url, "job") == ["jobs"]
    assert offered(place.url, "jobs", "") == ["list", "show", "prioritize", "cancel", "requeue", "approve"]
    assert "--state" in offered(place.url, "jobs", "--st")
    assert offered(place.url, "jobs", "--state", "que") == ["queued"]


def test_shells_that_show_descriptions_get_the_state(place: Workplace) -> None:
    assert ask(place.url, "profiles", "show", "twin_a", asked_by="zsh").stdout.split("\n")[:3] == [
        "plain",
        "twin_a",
        "available",
    ]


@pytest.mark.parametrize("url", ["sqlite:///nowhere/at/all.db", "postgresql://127.0.0.1:1/none", "nonsense"])
def test_a_store_that_cannot_be_used_completes_nothing_and_says_nothing(url: str) -> None:
    assert completed(url, "profiles", "show", "") == []


def test_a_store_that_does_not_answer_completes_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, and never says a word
        url = f"postgresql://127.0.0.1:{server.getsockname()[1]}/none"
        assert completed(url, "profiles", "show", "", seconds=0.5) == []


def test_completing_does_not_migrate_a_store(place: Workplace) -> None:
    file = place.url.removeprefix("sqlite:///")
    with sqlite3.connect(file) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {version - 1}")
    connection.close()
    assert completed(place.url, "profiles", "show", "") == []
    connection = sqlite3.connect(file)
    assert connection.execute("PRAGMA user_version").fetchone() == (version - 1,)
    connection.close()


def test_the_printed_script_completes_in_a_real_bash(place: Workplace, tmp_path: Path) -> None:
    command = tmp_path / "leasekeeper"
    quoted = " ".join(f"'{part}'" for part in program())
    command.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
    command.chmod(0o700)
    env = environment(place.url, **{SECONDS: str(SECONDS_TO_ANSWER)}, PATH=f"{tmp_path}:{os.environ['PATH']}")
    done = subprocess.run(
        ["bash", "--norc", "-c", SCRIPT.format(words="leasekeeper profiles show twin_", number=3)],
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS_TO_ANSWER,
        check=True,
    )
    assert (done.stdout.split(), done.stderr) == (["twin_a", "twin_b"], "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(empty: Workplace, shell: str) -> None:
    assert f"{INSTRUCTION}={shell}_complete" in empty.text("completion", shell)
