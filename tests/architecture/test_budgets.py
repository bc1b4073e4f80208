"""How large the source may be, and in how many places a name may stand. Budgets only fall.

A change that needs more raises its budget in a commit of its own, which says by how much and why.
What reads the code of all files is here, so that it is parsed once.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from gpu_mem_calculator import serving
from gpu_mem_calculator.run.recompute import FULL, SELECTIVE
from gpu_mem_calculator.serving import server_names
from gpu_mem_calculator.tools.reading.tools import FORMATS
from gpu_mem_calculator.tools.translation.tools import TOOLS
from gpu_mem_calculator.tools.writing.writers import WRITERS
from gpu_mem_calculator.training.engines import engine_names, shorthands, spellings
from gpu_mem_calculator.training.losses import LOSSES
from gpu_mem_calculator.training.optimizers import OPTIMIZERS
from tests.conftest import ROOT
from tests.docs.test_documents import script

SOURCE = ROOT / "src" / "gpu_mem_calculator"
LINES, PAIRS = 88_500, 69
MOST_LINES = 400  # of a file
# Names that a tool shares with an engine, a server, an implementation of a model, or an ending.
SHARED_WORDS = {
    *(*engine_names(), *server_names(), *shorthands(), *spellings(), *serving.spellings()),
    *("megatron", "torchtitan", "lightning", "json", "yaml", "toml"),
}
TOOL_NAMES = tuple(sorted({*FORMATS, *TOOLS, *WRITERS} - SHARED_WORDS))
# Names, and the folders and files that are their home. Tools and the laboratory speak of all.
HOMES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (tuple(LOSSES), ("training/losses.py", "run/recompute.py")),
    (tuple(OPTIMIZERS), ("training/optimizers.py",)),
    (tuple(engine_names()), ("training/engines/",)),
    (tuple(server_names()), ("serving/",)),
    ((FULL, SELECTIVE), ("run/recompute.py", "training/losses.py")),
    # releases that were read are a framework's, a kernel is a package's
    (TOOL_NAMES, ("ledger/frameworks.py", "training/losses.py")),
)
SPEAK_OF_ALL = ("tools/", "lab/")
# File names that mean the same in each folder of a room, so that a reader finds them by name.
SHARED_NAMES = {
    "training/engines": (
        "engine row knobs options checks shards states activations instants stream step_ledger "
        "model_inputs"
    ),
    "serving": (
        "engine row knobs options checks versions defaults weights cache graphs speculative "
        "command shards activations"
    ),
    "tools": "read write translate arguments command",
}
# Files that one sibling imports, and that stay: why.
OWN_FILES = {
    "cli/measure.py": "a command is one file",
    "lab/jobs/fsdp1.py": "a framework is one file",
    "lab/jobs/torchtitan.py": "a framework is one file",
    "models/families/audio.py": "its functions have the names of vision.py's",
    "tools/launchers/deepspeed.py": "a launcher is one file",
    "tools/llamafactory/second_version.py": "a version is one file, with a table of arguments",
}


@cache
def parsed(path: Path) -> ast.Module:
    """A file's code."""
    return ast.parse(path.read_text(encoding="utf-8"))


def inner(node: ast.AST) -> list[ast.AST]:
    """The statements that stand in one, with handlers and cases; expressions hold none."""
    parts = (ast.stmt, ast.ExceptHandler, ast.match_case)
    return [one for one in ast.iter_child_nodes(node) if isinstance(one, parts)]


@cache
def statements(path: Path) -> tuple[ast.AST, ...]:
    """A file's code and all its statements."""
    found: list[ast.AST] = [parsed(path)]
    for node in found:  # which grows
        found += inner(node)
    return tuple(found)


@cache
def files() -> dict[str, Path]:
    """Every module by its dotted name."""
    return {_module(path): path for path in sorted(SOURCE.rglob("*.py"))}


def _module(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def docstrings(path: Path) -> Iterator[ast.Constant]:
    """The docstrings of a file."""
    for node in statements(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


def lines_of_code(path: Path) -> int:
    """Lines that do something: without blanks, comments, docstrings and imports."""
    counted = {
        number
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.strip() and not line.strip().startswith("#")
    }
    found = statements(path)
    imports = [one for one in found if isinstance(one, ast.Import | ast.ImportFrom)]
    for node in (*imports, *docstrings(path)):
        counted -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(counted)


def test_the_source_stays_small() -> None:
    """Lines of code, without blanks, comments, docstrings and imports."""
    total = sum(map(lines_of_code, files().values()))
    assert total <= LINES, f"{total:,} lines of code, and the budget is {LINES:,}: take some out"
    assert total > LINES - 500, f"{total:,} lines of code: lower LINES in this file to that"


@cache
def pairs() -> list[tuple[str, str]]:
    """Every name of a row with every file outside its home in which it stands as a text."""
    found = []
    for path in files().values():
        place, tree = path.relative_to(SOURCE).as_posix(), parsed(path)
        said = {id(one) for one in docstrings(path)}
        constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
        texts = {one.value for one in constants if id(one) not in said}
        named = {
            name
            for names, homes in HOMES
            for name in texts.intersection(names)
            if not place.startswith((*homes, *SPEAK_OF_ALL))
        }
        found += [(name, place) for name in sorted(named)]
    return found


def test_no_name_of_a_tool_stands_outside_its_room() -> None:
    """Others ask its row: which tools train adapters, what the page offers."""
    assert {"axolotl", "llamafactory", "swift", "trl", "verl"} <= {*TOOL_NAMES}
    assert [one for one in pairs() if one[0] in TOOL_NAMES] == []


def test_a_name_stands_in_few_files() -> None:
    """Code asks a loss, an optimizer, an engine, a server or a policy for a property."""
    found = pairs()
    listed = "\n".join(f"{name:24}{place}" for name, place in found)
    assert len(found) <= PAIRS, (
        f"{len(found)} pairs of a name and a file, and the budget is {PAIRS}: give the row a field "
        f"and ask it instead\n{listed}"
    )
    assert len(found) > PAIRS - 5, f"{len(found)} pairs: lower PAIRS in this file to that"


@cache
def _imports(name: str, path: Path) -> list[tuple[str, bool]]:
    """What a module imports of the package, but for types, and whether at its top."""
    own = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    waiting: list[tuple[ast.AST, bool]] = [(parsed(path), True)]
    found = []
    while waiting:
        node, at_top = waiting.pop()
        match node:
            case ast.If(ast.Name("TYPE_CHECKING")):
                continue
            case ast.ImportFrom() if node.level:
                base = [*own[: len(own) - node.level + 1], *(node.module or "").split(".")]
                parts = ".".join(part for part in base if part)
                for one in node.names:
                    whole = f"{parts}.{one.name}".lstrip(".")
                    found.append((whole if whole in files() else parts, at_top))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                at_top = False
        waiting += [(one, at_top) for one in inner(node)]
    return found


def test_no_files_import_each_other_in_a_circle() -> None:
    """Neither inside functions nor at the top, but for types alone."""
    graph = {name: {other for other, _ in _imports(name, path)} for name, path in files().items()}
    TopologicalSorter({name: found - {name} for name, found in graph.items()}).prepare()


def lone_siblings() -> Iterator[str]:
    """Modules that one other of their folder imports, at its top, and that fit into it."""
    importers: dict[str, dict[str, bool]] = defaultdict(dict)
    for name, path in files().items():
        for other, at_top in _imports(name, path):
            if other != name:
                importers[other][name] = importers[other].get(name, False) or at_top
    for name, found in importers.items():
        if len(found) == 1 and name in files():
            (importer, at_top), path = next(iter(found.items())), files()[name]
            host = files()[importer]
            both = sum(len(one.read_text("utf-8").splitlines()) for one in (path, host))
            beside = host.parent == path.parent and "__init__.py" not in (host.name, path.name)
            if at_top and beside and both <= MOST_LINES and not _found_by_name(path):
                yield f"{path.relative_to(SOURCE).as_posix()} (into {host.name})"


def _found_by_name(path: Path) -> bool:
    """Whether a file's name means the same in sibling folders, or a table names the file."""
    place = path.relative_to(SOURCE)
    shared = SHARED_NAMES.get(place.parent.parent.as_posix(), "").split()
    named = "\nFAMILIES" in path.read_text("utf-8")  # by model type
    return path.stem in shared or named or place.as_posix() in OWN_FILES


def test_a_module_that_serves_one_sibling_is_part_of_it() -> None:
    """Where both fit into one file."""
    assert sorted(lone_siblings()) == []


def test_the_drawing_of_the_rooms_is_the_code() -> None:
    """`python docs/rooms.py` would change nothing, and no dot is on the other side."""
    made = script("rooms")
    order, arrows = made["rooms"](), made["imports"]()
    assert len(order) == 16
    back = [
        (room, one) for room in order for one in arrows[room] if one in order[order.index(room) :]
    ]
    assert back == []
    assert made["drawing"]() == (ROOT / "docs" / "rooms.svg").read_text("utf-8")


def test_every_room_says_what_it_may_import() -> None:
    """In its `__init__.py`, after what it does and what it takes and gives."""
    for room in script("rooms")["rooms"]():
        text = " ".join((ast.get_docstring(parsed(SOURCE / room / "__init__.py")) or "").split())
        assert "import" in text, f"{room}/__init__.py: say what it does, takes, gives, may import"


def test_nearly_all_functions_are_shorter_than_40_lines() -> None:
    """Ninety-five functions in a hundred fit on a screen."""
    sizes = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for path in files().values()
        for node in statements(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert sum(size < 40 for size in sizes) / len(sizes) >= 0.95


def is_empty(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is `pass` or `...` alone, without a word on why."""
    return all(isinstance(line, ast.Pass) or ast.unparse(line) == "..." for line in node.body)


def test_a_function_that_does_nothing_says_so() -> None:
    """Its docstring is there. Protocols and overloads describe functions of others."""
    bare = []
    for path in files().values():
        for owner in statements(path):
            if isinstance(owner, ast.Module | ast.ClassDef) and "Protocol" not in (
                ast.unparse(base) for base in getattr(owner, "bases", ())
            ):
                bare += [
                    f"{path.name}:{node.name}"
                    for node in owner.body
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                    and is_empty(node)
                    and not node.name.startswith("__")
                    and "overload" not in map(ast.unparse, node.decorator_list)
                ]
    assert bare == []


def test_a_class_name_occurs_once() -> None:
    """So that a name in a message or a review means one thing."""
    names = Counter(
        node.name
        for path in files().values()
        for node in statements(path)
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []
