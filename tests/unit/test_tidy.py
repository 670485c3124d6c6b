"""The house style as tests: what a reader of this repository may rely on.

Each test returns its findings as a list of `file:line: what is wrong`, so one failure names them all.
Files are those git tracks or would track; a rule that needs the code's structure reads its syntax tree.
"""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hypothesis.internal.conjecture import providers as hypothesis_providers

from leasekeeper.cli import SECTIONS
from leasekeeper.core.failures import Reason
from leasekeeper.core.routing import account_key

ROOT = Path(__file__).resolve().parents[2]
SHORTEST_HEADER = 50
MAX_HEADER_LINES = 30
FORBIDDEN_NAMES = {"utils", "helpers", "manager", "base", "common", "impl"}
# Each had several meanings, or one that nobody guesses: pause, notify, read, report, in a thread, in the background.
RIDDLES = {
    *("aside", "desk", "gathering", "habits", "hand_on", "hold", "hush", "insist", "look", "look_at"),
    *("offspring", "speak", "tell", "testimony", "told"),
}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
PRINT = re.compile(r"(?<![\w.])print\(")
TYPE_IGNORE = re.compile(r"#\s*type:\s*ignore")
# A suppression names its codes and then says why, after a dash: "noqa: S608 - the column is one of ours".
SUPPRESSION = re.compile(r"#\s*(?:noqa|type:\s*ignore)")
REASONED_SUPPRESSION = re.compile(
    r"#\s*(?:noqa:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*|type:\s*ignore\[[\w, -]+\])\s+(?:#|-)\s*\w{2,}"
)
SLEEP = re.compile(r"\b(?:time|asyncio)\.sleep\((?!0\))|(?<![\w.])sleep\((?!0\))")
SKIP = re.compile(r"\bpytest\.(?:skip|xfail|importorskip)\(|\bmark\.(?:skip|skipif|xfail)\b")
MACHINE = re.compile(
    r"https?://[^\s)\"']*/simple\b"  # a package index
    r"|--(?:extra-)?index-url|--find-links|--trusted-host"
    r"|(?<![\w.])/(?:home/\w|root/|work/|opt/\w|Users/\w)"  # somebody's disk
)
MARKDOWN_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
MARKDOWN_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
# The command line, and the demo that it plays.
KNOW_COMMANDS = ("cli", "demo")
COMMANDS = [name for section in SECTIONS.values() for name in section]
COMMAND = re.compile(rf"\bleasekeeper (?:{'|'.join(COMMANDS)})\b")
# Nor does a layer that other programs call know a shell, or that of a server.
NO_SHELL = ("core", "stores", "wire", "wording", "errors.py")
SHELL_COMMAND = re.compile(
    r"\b(?:pip|apt|apt-get|playwright|npm) install|\bch(?:mod|own) |\bsudo |\bsystemctl |\bCONFIG SET\b"
    r"|(?<!\w)--[a-z][a-z-]+"
)
# A project's first tasks, and the demo's, are copied by people: they spell reasons as their own code would.
SPELL_REASONS = ("core/failures.py", "browsers/keeper/reasons.py", "cli/project", "demo/tasks.py")
STATEMENT_NAME = re.compile(r"^-- name: *(\S+)", re.MULTILINE)


@cache
def repository_files() -> list[Path]:
    """Files that git tracks or would track, new ones included."""
    git = ["git", "-c", f"safe.directory={ROOT}"]
    command = [*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return sorted(path for path in paths if path.is_file())


def files(top: str, suffix: str) -> list[Path]:
    return [path for path in repository_files() if path.suffix == suffix and path.is_relative_to(ROOT / top)]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lines_that_match(paths: list[Path], pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Where a pattern occurs, as (`file:line`, the line)."""
    for path in paths:
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if pattern.search(line):
                yield f"{name_of(path)}:{number}", line.strip()


def found(paths: list[Path], pattern: re.Pattern[str]) -> list[str]:
    return [f"{place}: {line}" for place, line in lines_that_match(paths, pattern)]


def source() -> list[Path]:
    return files("src", ".py")


def python() -> list[Path]:
    """All Python but this file, which has to spell what it forbids."""
    return [path for path in files(".", ".py") if path != Path(__file__).resolve()]


def suite() -> list[Path]:
    return [path for path in python() if path.is_relative_to(ROOT / "tests")]


def test_there_is_something_to_check() -> None:
    assert ROOT / "src/leasekeeper/__init__.py" in source()
    assert ROOT / "tests/conftest.py" in suite()


def test_every_module_says_in_its_header_what_it_owns() -> None:
    findings = []
    for path in source():
        header = ast.get_docstring(tree_of(path))
        if header is None or len(header) < SHORTEST_HEADER or len(header.splitlines()) > MAX_HEADER_LINES:
            findings.append(f"{name_of(path)}: the header should say in a sentence or a few what the module owns")
    assert findings == []


def test_no_file_is_too_long() -> None:
    findings = []
    ours = [*source(), *files("tools", ".py"), *files("bench", ".py"), *files("src", ".sql")]
    for paths, limit in [(ours, 500), (files("tests", ".py"), 800)]:
        for path in paths:
            lines = len(text_of(path).splitlines())
            if lines > limit:
                findings.append(f"{name_of(path)}: {lines} lines, limit {limit}")
    assert findings == []


def test_every_function_fits_a_screen() -> None:
    findings = []
    for path in source():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 70:
                    findings.append(f"{name_of(path)}:{node.lineno}: {node.name} has {lines} lines")
    assert findings == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    named = [(path, {part.removesuffix(".py") for part in path.relative_to(ROOT).parts}) for path in python()]
    assert [name_of(path) for path, parts in named if parts & FORBIDDEN_NAMES] == []


def test_nothing_is_named_by_a_riddle() -> None:
    named = [(name_of(path), path.stem) for path in source()]
    for path in source():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                named.append((f"{name_of(path)}:{node.lineno}", node.name))
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                named.append((f"{name_of(path)}:{node.lineno}", node.id))
    assert [f"{place}: {name}" for place, name in named if name.strip("_").casefold() in RIDDLES] == []


def test_nothing_is_left_unfinished() -> None:
    assert found([*python(), *files("src", ".sql")], UNFINISHED) == []


def test_only_the_command_line_prints() -> None:
    library = [path for path in source() if not path.is_relative_to(ROOT / "src/leasekeeper/cli")]
    assert found(library, PRINT) == []


def test_core_and_ports_have_no_type_ignores() -> None:
    strict = [*files("src/leasekeeper/core", ".py"), *[p for p in source() if p.name == "ports.py"]]
    assert found(strict, TYPE_IGNORE) == []


def test_every_suppression_has_a_code_and_a_reason() -> None:
    suppressed = lines_that_match(python(), SUPPRESSION)
    assert [f"{place}: {line}" for place, line in suppressed if not REASONED_SUPPRESSION.search(line)] == []


def test_tests_do_not_sleep_without_a_reason() -> None:
    assert [finding for finding in found(suite(), SLEEP) if "# waits: " not in finding] == []


def test_examples_do_not_depend_on_what_was_imported() -> None:
    """Hypothesis would mix in constants of our modules, of those that this process happens to have imported."""
    assert len(hypothesis_providers._get_local_constants()) == 0


def test_no_test_is_skipped() -> None:
    assert found(suite(), SKIP) == []


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    this_file = Path(__file__).resolve()
    texts = [path for path in repository_files() if path != this_file and is_text(path)]
    assert found(texts, MACHINE) == []


def is_text(path: Path) -> bool:
    return b"\0" not in path.read_bytes()[:8192]


def test_every_relative_link_in_markdown_leads_somewhere() -> None:
    findings = []
    for path in files(".", ".md"):
        for target in MARKDOWN_LINK.findall(MARKDOWN_CODE.sub("", text_of(path))):
            if re.match(r"[a-z]+:|#", target):
                continue
            if not (path.parent / target.split("#")[0]).exists():
                findings.append(f"{name_of(path)}: {target}")
    assert findings == []


def test_every_sql_statement_has_one_name_and_a_user() -> None:
    code = "\n".join(text_of(path) for path in source())
    words = set(re.findall(r"\w+", code))
    findings = []
    for path in files("src", ".sql"):
        for name, count in Counter(STATEMENT_NAME.findall(text_of(path))).items():
            if count > 1:
                findings.append(f"{name_of(path)}: {name} is there {count} times")
            # A piece of a list (find_job__state) is used by the name of the list and its own.
            if name not in words and not all(part in words for part in name.split("__", 1)):
                findings.append(f"{name_of(path)}: {name} is used nowhere")
    assert findings == []


def test_sql_writes_the_key_of_an_account_as_the_core_does() -> None:
    """An index of some keys needs their form as text: bound as a parameter, no statement could use that index."""
    forms = re.compile(r"routing_key LIKE '([^']*)'")
    found = {form for path in files("src", ".sql") for form in forms.findall(text_of(path))}
    assert found == {account_key("%")}


def is_below(path: Path, places: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(ROOT / "src/leasekeeper" / place) for place in places)


@cache
def texts(path: Path) -> list[tuple[str, str]]:
    """Every text of a module but its docstrings, which are for readers, as (`file:line`, text)."""
    nodes = list(ast.walk(tree_of(path)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [
        (f"{name_of(path)}:{node.lineno}", node.value)
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


def test_only_the_command_line_knows_commands() -> None:
    """Whoever gets an error or an answer may sit at a page, or write another language: hints are the edge's."""
    found = (each for path in source() if not is_below(path, KNOW_COMMANDS) for each in texts(path))
    assert [f"{place}: {text!r}" for place, text in found if COMMAND.search(text)] == []


def test_what_every_program_calls_knows_no_shell() -> None:
    found = (each for path in source() if is_below(path, NO_SHELL) for each in texts(path))
    assert [f"{place}: {text!r}" for place, text in found if SHELL_COMMAND.search(text)] == []


def test_the_core_names_no_setting() -> None:
    """What a person can change is advice, and that has words above the core."""
    found = (each for path in source() if is_below(path, ("core",)) for each in texts(path))
    assert [f"{place}: {text!r}" for place, text in found if "LEASEKEEPER_" in text] == []


def test_a_built_in_reason_is_spelt_once() -> None:
    """TIMEOUT is also an ordinary word; a task's own reasons are its own."""
    found = (each for path in source() if not is_below(path, SPELL_REASONS) for each in texts(path))
    reasons = set(Reason) - {Reason.TIMEOUT}
    assert [f"{place}: {text!r}" for place, text in found if text in reasons] == []


def test_the_architecture_shows_every_module_and_no_other() -> None:
    section = text_of(ROOT / "ARCHITECTURE.md").partition("## Every module")[2].partition("\n## ")[0]
    lines = [re.findall(r"`([^`]+)`", line) for line in section.splitlines() if line.startswith("- ")]
    shown = {f"{package.removeprefix('leasekeeper/')}{module}" for package, *modules in lines for module in modules}
    top = ROOT / "src/leasekeeper"
    there = {str(path.relative_to(top).with_suffix("")) for path in source() if path.name != "__init__.py"}
    assert (sorted(there - shown), sorted(shown - there)) == ([], [])


def test_the_architecture_says_what_each_module_of_the_core_is() -> None:
    section = text_of(ROOT / "ARCHITECTURE.md").partition("## core, one noun each")[2].partition("\n## ")[0]
    there = {path.stem for path in source() if path.parent == ROOT / "src/leasekeeper/core"} - {"__init__"}
    assert there - set(re.findall(r"`(\w+)`", section)) == set()


def test_the_architecture_shows_every_folder_of_tests_and_no_other() -> None:
    section = text_of(ROOT / "ARCHITECTURE.md").partition("## Tests")[2].partition("\n## ")[0]
    shown = set(re.findall(r"`tests/(\w+)`", section))
    there = {path.parent.name for path in suite() if path.parent.parent == ROOT / "tests"}
    assert (sorted(there - shown), sorted(shown - there)) == ([], [])


def test_migrations_are_numbered_without_a_gap_and_say_their_number() -> None:
    for dialect in ("sqlite", "postgres"):
        found = sorted(path for path in files("src", ".sql") if f"{dialect}/migrations" in name_of(path))
        assert [path.name[:4] for path in found] == [f"{number:04}" for number in range(1, len(found) + 1)]
        for number, path in enumerate(found[1:], 2):
            assert text_of(path).startswith(f"-- Schema {number}. "), path.name
