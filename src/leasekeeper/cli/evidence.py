"""A run's evidence as a person reads it: where the files are, what went wrong in the page, how the browser ended."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leasekeeper.cli.table import Screen, printable
from leasekeeper.wording.browsers import end_text

MAX_ENTRIES = 8


def evidence_lines(evidence: Mapping[str, Any], data_dir: Path, screen: Screen) -> Iterator[str]:
    """The lines under `leasekeeper runs show`. Nothing, if the run left no evidence."""
    if not evidence:
        return
    yield ""
    yield screen.title("evidence")
    yield printable(f"  {_where(evidence, data_dir)}")
    for artifact in evidence.get("artifacts", ()):
        yield printable(f"    {artifact['name']:<24} {_size(artifact['size']):>9}  sha256 {artifact['sha256'][:12]}…")
    if evidence.get("unsaved"):
        yield printable(f"  not saved: {evidence['unsaved']}")
    yield from _traceback(evidence.get("traceback"))
    yield from _page(evidence)
    yield from _keeper(evidence.get("keeper"))


def _where(evidence: Mapping[str, Any], data_dir: Path) -> str:
    """The folder of the files, or the place that they were delivered to."""
    name = str(evidence.get("folder", ""))
    if evidence.get("place") is not None:
        return f"{evidence['place']}/{name}"
    folder = data_dir / "runs" / name
    return f"{folder}{'' if folder.is_dir() else ' (not on this machine, or deleted by now)'}"


def _traceback(text: str | None) -> Iterator[str]:
    for line in text.split("\n") if text else ():
        yield printable(f"  {line}")


def _page(evidence: Mapping[str, Any]) -> Iterator[str]:
    console, network = evidence.get("console", {}), evidence.get("network", {})
    if console or network:
        yield (
            f"  console: {console.get('errors', 0)} errors, {console.get('warnings', 0)} warnings; "
            f"network: {network.get('failed', 0)} failed, {network.get('error_answers', 0)} error answers"
        )
    for entry in console.get("entries", [])[:MAX_ENTRIES]:
        yield printable(f"    {entry['text']}")
    for entry in network.get("entries", [])[:MAX_ENTRIES]:
        method = f"{entry['method']} " if "method" in entry else ""  # of an error answer only the address is known
        yield printable(f"    {method}{entry['url']}: {entry['problem']}")
    if evidence.get("no_screenshot"):
        kept = any(artifact["name"] == "last.png" for artifact in evidence.get("artifacts", ()))
        instead = "; last.png is what the keeper took" if kept else ""
        yield printable(f"  no final.png: {evidence['no_screenshot']}{instead}")


def _keeper(keeper: Mapping[str, Any] | None) -> Iterator[str]:
    if not keeper:
        return
    proof = "proven clean" if keeper.get("clean_close") else f"not proven clean: {keeper.get('failing_clause', '')}"
    cause = end_text(str(keeper.get("cause") or "not started"))
    yield printable(f"  browser: {cause} ({keeper.get('stopped_by')}), {proof}")
    if keeper.get("revoke_reason"):
        yield printable(f"    {keeper['revoke_reason']}")
    commands = keeper.get("commands", [])
    if commands:
        yield "  last commands that reached it:"
    for command in commands[-MAX_ENTRIES:]:
        at = datetime.fromtimestamp(float(command["at"]), UTC)
        yield printable(f"    {at:%H:%M:%S}.{at.microsecond // 1000:03d}  {command['method']:<28} {command['url']}")


def _size(count: int) -> str:
    return f"{count:,} B" if count < 10_000 else f"{count / 1000:,.0f} kB"
