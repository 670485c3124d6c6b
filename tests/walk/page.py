"""A page of the documentation as a walk: files to save, commands to type, and what they answer, in their order.

- A block whose first line is a comment with a path is a file to save.
- `console`: each line that begins with `$ ` is typed, and what follows is in the answer.
- `sh`: a command for a terminal of its own, which goes on until the walk stops it.
- `text`: what the newest of those terminals prints when Ctrl-C is pressed in it.
"""

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"^(?:#|<!--) ([\w./-]+\.\w+)(?: -->)?$")
# Ids, names of this machine, counts and times differ from walk to walk.
VARIES = re.compile(r"[0-9a-f]{8}-[0-9a-f-]+|[\w.]+-\d{3,}|/srv\S*|\d+|in|ago|[smhd]|JOB_ID")
# A worker may have taken the job, or done it, before the command reads its state.
SOON = {"queued": ("queued", "running", "completed")}


@dataclass(frozen=True, slots=True)
class Save:
    path: str
    content: str


@dataclass(frozen=True, slots=True)
class Type:
    command: str
    answer: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start:
    command: str


@dataclass(frozen=True, slots=True)
class Interrupt:
    answer: tuple[str, ...]


Step = Save | Type | Start | Interrupt


def steps_of(page: Path) -> list[Step]:
    """The steps of a page, in order."""
    found: list[Step] = []
    for info, body in FENCE.findall(page.read_text(encoding="utf-8")):
        name = FILE.match(body.partition("\n")[0])
        match info.split()[0]:
            case _ if name is not None:
                found.append(Save(name[1], body))
            case "console":
                found += _typed(body)
            case "sh":
                found += [Start(line) for line in body.splitlines()]
            case "text":
                found.append(Interrupt(tuple(body.splitlines())))
            case other:
                raise AssertionError(f"a walk does not know blocks of {other}")
    return found


def _typed(body: str) -> list[Type]:
    found: list[tuple[str, list[str]]] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return [Type(command, tuple(answer)) for command, answer in found]


def missing(expected: tuple[str, ...], printed: str) -> list[str]:
    """The lines of the page that the program did not print: each has its words, in order, in one printed line."""
    lines = [line.split() for line in printed.splitlines()]
    return [line for line in expected if not any(_has(line, words) for words in lines)]


def _has(expected: str, words: list[str]) -> bool:
    left = iter(words)
    fixed = [word for word in expected.split() if word != "…" and VARIES.fullmatch(word) is None]
    return all(any(each in SOON.get(word, (word,)) for each in left) for word in fixed)
