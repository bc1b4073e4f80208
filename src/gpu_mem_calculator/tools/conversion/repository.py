"""A git repository: which files changed since a commit, and the files as they were.

git is asked for facts alone: no hook, no filter and no program of the repository is started.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from ...runfile.text.errors import InputError, printable
from ...runfile.text.files import MOST_BYTES
from .configuration import may_be_configuration

QUIET = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
# What a configuration may name, beside what may be one: scripts, requirements, lengths.
NAMED = (".py", ".txt", ".jsonl", ".csv", ".env", ".ini", ".cfg", ".j2", ".jinja")
PLAIN_FILES = ("100644", "100755")  # git's modes of files that are no links
ADDED, DELETED = "A", "D"
MOST_CHANGED = 1000  # files of one change that are looked at


class ChangedFile(Struct, frozen=True):
    """A file that changed: its paths before and now, empty where it did not exist."""

    old: str
    path: str

    @property
    def name(self) -> str:
        """What it is called now, else what it was called."""
        return self.path or self.old


class Repository(Struct, frozen=True):
    """The repository around a folder, and the commit that it is compared with."""

    root: Path
    base: str

    @classmethod
    def around(cls, folder: Path, name: str) -> Repository:
        """The repository that `folder` is in, compared with what HEAD and `name` have in common."""
        if not name or name.startswith("-"):
            raise InputError(f"--changed {name!r} is not the name of a commit")
        root = Path(_line(folder, "rev-parse", "--show-toplevel"))
        try:
            base = _line(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        except InputError:
            return cls(root, _nothing(root, name))
        try:
            return cls(root, _line(root, "merge-base", base, "HEAD"))
        except InputError:  # a shallow clone has no history to look into
            return cls(root, base)

    def changed(self) -> list[ChangedFile]:
        """The files of git that changed since the base, staged or not."""
        found = _git(
            self.root,
            *("diff", "--name-status", "-z", "--find-renames", "--no-ext-diff", "--no-textconv"),
            *("--ignore-submodules", self.base, "--"),
        )
        files = list(_changes(os.fsdecode(found).split("\0")))
        if len(files) > MOST_CHANGED:
            many = f"{len(files):,} files changed, at most {MOST_CHANGED:,} are looked at"
            raise InputError(f"--changed: {many}; name a later commit")
        return files

    def write_base(self, folder: Path) -> None:
        """Write the base's files that a configuration can be or name into an empty folder."""
        listed = os.fsdecode(_git(self.root, "ls-tree", "-r", "-z", "--long", self.base))
        wanted: list[tuple[str, str]] = []
        for entry in filter(None, listed.split("\0")):
            facts, _, path = entry.partition("\t")
            mode, _, number, size = facts.split()
            named = may_be_configuration(path) or path.lower().endswith(NAMED)
            if mode in PLAIN_FILES and named and int(size) <= MOST_BYTES:
                wanted.append((number, path))
        given = "".join(f"{number}\n" for number, _ in wanted).encode()
        answer, place = _git(self.root, "cat-file", "--batch", given=given), 0
        for _, path in wanted:
            begin = answer.index(b"\n", place) + 1  # behind a line that ends with the size
            place = begin + int(answer[place:begin].split()[-1]) + 1
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(answer[begin : place - 1])


def _changes(fields: Sequence[str]) -> Iterator[ChangedFile]:
    """The files of what git lists: a status, then a path, or two where a file was renamed."""
    rest = iter(fields)
    for status in filter(None, rest):
        path = next(rest)
        if status[0] in "RC":
            yield ChangedFile(path, next(rest))
        else:
            yield ChangedFile("" if status == ADDED else path, "" if status == DELETED else path)


def _nothing(root: Path, name: str) -> str:
    """The tree without a file, for HEAD of a repository that has no commit yet."""
    try:
        _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    except InputError:
        if name == "HEAD":
            return os.fsdecode(_git(root, "hash-object", "-t", "tree", "--stdin")).strip()
    raise InputError(
        f"--changed {name}: git knows no such commit here; fetch it, or name another"
    ) from None


def _line(folder: Path, *words: str) -> str:
    return os.fsdecode(_git(folder, *words)).rstrip("\n")


def _git(folder: Path, *words: str, given: bytes = b"") -> bytes:
    """What git prints; raises its sentence where it fails."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    command = ["git", *QUIET, *words]
    try:
        done = subprocess.run(
            command, cwd=folder, input=given, capture_output=True, env=environment, check=True
        )
    except FileNotFoundError:
        raise InputError("--changed needs git, which is not on the PATH") from None
    except subprocess.CalledProcessError as error:
        said = printable(error.stderr.decode("utf-8", "replace")).strip()
        why = said.removeprefix("fatal: ") or f"exit code {error.returncode}"
        raise InputError(f"--changed: git {words[0]}: {why}") from None
    return done.stdout
