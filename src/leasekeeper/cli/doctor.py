"""`leasekeeper doctor`: is this installation sound, and is the fleet ready for more workers?

Prints what the runtime found; the status is a word, colours only repeat it.
"""

import sys
from collections.abc import Sequence
from textwrap import wrap
from typing import Final

import click

from leasekeeper.cli.connection import settings
from leasekeeper.cli.hints import steps_of
from leasekeeper.cli.options import output
from leasekeeper.cli.output import answer_json, encoded
from leasekeeper.cli.table import Screen, printable
from leasekeeper.core.doctor.findings import CHECKS, Check, Finding, Group, Status, counts, exit_code
from leasekeeper.core.doctor.scale_questions import QUESTIONS
from leasekeeper.errors import nearest
from leasekeeper.version import __version__
from leasekeeper.wording.doctor import todo_text

_NAMES: Final = (*Group, *(check.id for check in CHECKS), *(question.check.id for question in QUESTIONS))
_TITLES: Final = {
    Group.INSTALLATION: "Installation",
    Group.PROFILES: "Before you scale: profiles",
    Group.QUEUE: "Before you scale: the queue",
}
_COLOURS: Final = {Status.OK: "32", Status.WARN: "33", Status.FAIL: "31", Status.SKIP: "2"}
_LABEL: Final = len("yes, but")
_ID: Final = max(len(check.id) for check in CHECKS)
_WIDEST: Final = 100


def _known(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for name in value:
        if name not in _NAMES:
            meant = nearest(name, _NAMES)
            hint = f"did you mean {meant}?" if meant else f"there are: {', '.join(_NAMES)}"
            raise click.BadParameter(f"there is no check {name!r}; {hint}")
    return value


@click.command("doctor")
@click.option(
    "--only",
    metavar="CHECK",
    multiple=True,
    callback=_known,
    help="Only this check, question or group (installation, profiles, queue); may be repeated.",
)
@click.option("--no-browser", is_flag=True, help="Do not start a browser.")
@click.option("--strict", is_flag=True, help="Exit with 1 if there are warnings.")
@output
@click.pass_context
def command(
    ctx: click.Context, only: tuple[str, ...], no_browser: bool, strict: bool, store: str | None, as_json: bool
) -> None:
    """Check this installation, and answer nineteen questions to ask before starting more workers.

    Run it on every machine that has workers, with their environment and as their user. It changes nothing: it starts a
    browser once in a throwaway directory, and neither creates nor migrates a store.

    Exit code: 0 if nothing failed, 1 with --strict if there are warnings, 2 if something failed.
    """
    import asyncio

    from leasekeeper.runtime.doctor import examine

    progress = _Progress()
    try:
        findings = asyncio.run(
            examine(lambda: settings(store), only=only, with_browser=not no_browser, progress=progress.at)
        )
    finally:
        progress.over()
    if as_json:
        answer_json(document(findings))
    else:
        for line in lay_out(findings, Screen.now()):
            click.echo(line)
    ctx.exit(exit_code(findings, strict=strict))


class _Progress:
    """One line on a terminal's stderr that says what is being checked; it is gone before the answer."""

    def __init__(self) -> None:
        self._shown = False

    def at(self, done: int, total: int, check: Check) -> None:
        if sys.stderr.isatty():
            self._shown = True
            click.echo(f"\r\x1b[Kchecking {done + 1} of {total}: {check.id}", nl=False, err=True)

    def over(self) -> None:
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)


def document(findings: Sequence[Finding]) -> dict[str, object]:
    """The answer for programs."""
    tally = counts(findings)
    worst = next((status for status in (Status.FAIL, Status.WARN) if tally[status]), Status.OK)
    return {
        "version": __version__,
        "status": worst.value,
        "counts": tally,
        "findings": [
            {
                "id": finding.check.id,
                "group": finding.check.group.value,
                "question": finding.check.question,
                **_object(encoded(finding.verdict)),
                "todo": todo_text(finding.verdict),
                "commands": steps_of(finding.verdict),
            }
            for finding in findings
        ],
    }


def _object(value: object) -> dict[str, object]:
    """A record as JSON, which is an object."""
    return dict(value) if isinstance(value, dict) else {}


def lay_out(findings: Sequence[Finding], screen: Screen) -> list[str]:
    """A block per group: status, what was checked, what was found, and what to do after an arrow."""
    lines = []
    for group, title in _TITLES.items():
        part = [finding for finding in findings if finding.check.group is group]
        if part:
            lines += [screen.title(title), *_block(part, screen), ""]
    tally = counts(findings)
    summary = f"{tally['ok']} ok, {tally['warn']} warnings, {tally['fail']} failed, {tally['skip']} skipped"
    return [*lines, screen.title(summary)]


def _block(part: Sequence[Finding], screen: Screen) -> list[str]:
    """The findings of one group. If all of its questions were skipped for one reason, it is printed once."""
    why = {finding.verdict.found for finding in part if finding.verdict.status is Status.SKIP}
    if len(part) > 1 and len(why) == 1 and all(finding.verdict.status is Status.SKIP for finding in part):
        return [f"  {screen.dim(f'{Status.SKIP.value:<{_LABEL}}')}  {len(part)} not answered: {why.pop()}"]
    return [line for finding in part for line in _finding(finding, screen)]


def _finding(finding: Finding, screen: Screen) -> list[str]:
    check, verdict = finding.check, finding.verdict
    label = screen.paint(f"{verdict.answer or verdict.status:<{_LABEL}}", _COLOURS[verdict.status])
    if check.group is Group.INSTALLATION:
        indent = 2 + _LABEL + 2 + _ID + 2
        first, *rest = _paragraph(verdict.found, indent, screen)
        lines = [f"  {label}  {check.id:<{_ID}}  {first}", *(" " * indent + line for line in rest)]
    else:
        indent = 2 + _LABEL + 2
        first, *rest = _paragraph(check.question, indent, screen)
        lines = [f"  {label}  {first}", *(" " * indent + line for line in rest)]
        lines += [" " * indent + screen.dim(line) for line in _paragraph(verdict.found, indent, screen)]
    todo = _paragraph(todo_text(verdict), indent + 2, screen) if verdict.advice else []
    todo += [line for command in steps_of(verdict) for line in _paragraph(command, indent + 2, screen)]
    return lines + [" " * indent + ("→ " if number == 0 else "  ") + line for number, line in enumerate(todo)]


def _paragraph(text: str, indent: int, screen: Screen) -> list[str]:
    """The text in lines that fit beside the indent. Where the output is no terminal nothing is cut."""
    if screen.width is None:
        return [printable(text)]
    width = max(min(screen.width, _WIDEST) - indent, 20)
    return wrap(printable(text), width, break_long_words=True, break_on_hyphens=False) or [""]
