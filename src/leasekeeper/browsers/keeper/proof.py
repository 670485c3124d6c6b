"""The clean-close proof of a local browser: its clauses, checked on the profile's directory. Changes nothing."""

import json

from leasekeeper.browsers.keeper.directory import singleton_lock

_NOT_STORED = "the browser did not say in time that local storage was written: what was stored last may be lost"
MAX_PREFERENCES = 64 * 1024 * 1024


def prove(
    user_data_dir: str,
    folder: str,
    stopped_by: str,
    exit_code: int | None,
    signal: int | None,
    processes_gone: bool,
    *,
    stored: bool = True,
) -> dict[str, object]:
    """All clauses of the proof (`clauses`), and a sentence about the first that fails, if any (`failing_clause`).

    `stopped_by`: what ended the browser. `processes_gone`: all its processes have ended. `stored`: it confirmed that
    local storage was written.
    """
    lock = singleton_lock(user_data_dir)
    exit_type = read_exit_type(f"{user_data_dir}/{folder}/Preferences")
    # A person who closes the window ends the browser as cleanly as Browser.close. SIGTERM exits with 0 too, but leaves
    # the lock and another exit_type: the clauses for those fail.
    graceful = stopped_by in ("Browser.close", "itself") and exit_code == 0
    return {
        "clauses": {
            "graceful": graceful,
            "processes_gone": processes_gone,
            "lock_gone": lock is None,
            "exit_type_normal": exit_type == "Normal",
            "storage_written": stored,
        },
        "failing_clause": _failing(graceful, stopped_by, exit_code, signal, processes_gone, lock, exit_type)
        or ("" if stored else _NOT_STORED),
    }


def is_untouched(user_data_dir: str, folder: str) -> bool:
    """Whether a browser that ended before its first message changed nothing: else its lock or exit_type shows it."""
    exit_type = read_exit_type(f"{user_data_dir}/{folder}/Preferences")
    return singleton_lock(user_data_dir) is None and exit_type in (None, "Normal")


def read_exit_type(path: str) -> str | None:
    """`exit_type` in the Preferences; None if there is none. Chromium writes `Crashed` at its start, `Normal` at its
    end."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not loaded in the keeper
            found = json.loads(file.read(MAX_PREFERENCES))["profile"]["exit_type"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(found)


def _failing(
    graceful: bool,
    stopped_by: str,
    exit_code: int | None,
    signal: int | None,
    processes_gone: bool,
    lock: str | None,
    exit_type: str | None,
) -> str:
    if not graceful:
        return _how_it_ended(stopped_by, exit_code, signal)
    if not processes_gone:
        return "processes of the browser are still alive"
    if lock is not None:
        return f"the browser left its lock behind ({lock})"
    if exit_type is None:
        return "the profile does not say how the browser ended (no exit_type in its Preferences)"
    return "" if exit_type == "Normal" else f"the profile's exit_type is {exit_type}, not Normal"


def _how_it_ended(stopped_by: str, exit_code: int | None, signal: int | None) -> str:
    if stopped_by == "SIGKILL":
        return "the browser did not close and was killed (SIGKILL)"
    if stopped_by == "SIGINT":
        return "the browser did not close when asked and was interrupted (SIGINT)"
    ended = f"was ended by signal {signal}" if signal is not None else f"exited with code {exit_code}"
    if stopped_by == "itself":
        return f"the browser {ended} without having been asked to close"
    return f"the browser {ended} while it was closing"
