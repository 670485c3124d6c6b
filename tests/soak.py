"""A soak: fresh random histories and long chaos rounds on every store, until the time is over.

`python -m tests.soak --minutes 30` prints the seed that it runs with; the same seed is the same rounds in the same
order. What fails is kept in `.soak/`, a folder each, with what the round left behind, and the exit code is 1. A history
that failed is shortened by Hypothesis and belongs into `tests/model/regressions.py`.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import hypothesis

from leasekeeper.core.accounts import Routing
from tests.chaos.rounds import fleet, workers_die
from tests.model.playing import play
from tests.redis_store import DurableRedis, redis_server
from tests.servers import PostgresServer, new_database, postgres_server

FOUND = Path(".soak")
HISTORIES = 50
LONGEST_SEED = 2**64
FLEETS = (
    lambda: fleet(12),
    lambda: fleet(12, accounts=5, routing=Routing.ACCOUNT, vendor=2),
    lambda: fleet(24, accounts=24, vendor=2),
    lambda: fleet(15, accounts=3, routing=Routing.ACCOUNT_TASK),
)
JOBS, FAULTS = 300, 40

# A name, where it may leave files, and what is done.
Round = tuple[str, Path, Callable[[], object]]


def rounds(seed: int, server: PostgresServer, redis: DurableRedis, directory: Path) -> Iterator[Round]:
    """Rounds without end. Each has a store and a folder of its own."""
    chance = random.Random(seed)
    number = 0
    while True:
        for store in ("sqlite", "postgres", "redis"):
            for kind in ("histories", "chaos"):
                number += 1
                own = chance.randrange(LONGEST_SEED)
                place = directory / str(number)
                place.mkdir()
                url = new_store(store, place, server, redis)
                name = f"{number:04}-{store}-{kind}-{own}"
                if kind == "histories":
                    yield name, place, partial(play, url, examples=HISTORIES, seed=own)
                else:
                    everything = chance.choice(FLEETS)()
                    chaos = partial(workers_die, url, place, own, everything=everything, count=JOBS, faults=FAULTS)
                    yield name, place, chaos


def new_store(kind: str, place: Path, server: PostgresServer, redis: DurableRedis) -> str:
    """The URL of an empty store. There is one Redis for all: rounds follow one another."""
    if kind == "redis":
        return redis.emptied()
    return f"sqlite:///{place / 'soak.db'}" if kind == "sqlite" else new_database(server)


def failure_of(play_round: Callable[[], object]) -> str | None:
    """What went wrong in a round, with all that is known of it; None if nothing did."""
    try:
        play_round()
    except Exception:  # noqa: BLE001 - whatever it is, it was found
        return traceback.format_exc()
    return None


def keep(found: str, seed: int, name: str, place: Path, folder: Path) -> Path:
    """Put what went wrong, and all that the round left in its place (logs of clients, an SQLite file), into the folder.
    Returns where it is."""
    kept = folder / f"{seed}-{name}"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(place, kept)
    (kept / "failure.txt").write_text(f"python -m tests.soak --seed {seed}\nround {name}\n\n{found}")
    return kept


def soak(minutes: float, seed: int) -> int:
    """Rounds until the time is over; a round that has begun is ended. Returns how many failed."""
    hypothesis.settings.load_profile("default")
    print(f"soak of {minutes:g} minutes, seed {seed}", flush=True)
    failed = 0
    with (
        postgres_server() as server,
        tempfile.TemporaryDirectory(prefix="lk-soak-") as directory,
        redis_server(Path(directory)) as redis,
    ):
        until = time.monotonic() + minutes * 60
        for name, place, play_round in rounds(seed, server, redis, Path(directory)):
            if time.monotonic() >= until:
                break
            started = time.monotonic()
            found = failure_of(play_round)
            took = time.monotonic() - started
            print(f"{'FAILED' if found else 'passed'} {name} ({took:.0f} s)", flush=True)
            if found:
                failed += 1
                print(f"see {keep(found, seed, name, place, FOUND)}/", flush=True)
            shutil.rmtree(place)
    print(f"{failed} rounds failed", flush=True)
    return failed


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=None, help="the seed of an earlier soak (default: a fresh one)")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(LONGEST_SEED) if options.seed is None else options.seed
    return 1 if soak(options.minutes, seed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
