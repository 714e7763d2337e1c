"""Walk through a folder: which of its files may hold objects (docs/reference/sources.md#what-is-read-in-a-folder).

Files that end in .yaml, .yml and .json, in the order of names. Left out is what lies below hidden folders,
`node_modules`, `vendor` and virtual environments, and what `--exclude` or a `.tierwallignore` names. Links are followed
inside the folder only, and no folder is walked through twice, so a loop of links ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import Struct

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.source import Position

if TYPE_CHECKING:
    from tierwall.resources.ignore import IgnoreRules

ENDINGS = (".yaml", ".yml", ".json")
IGNORE_FILE = ".tierwallignore"
SKIPPED = frozenset({"node_modules", "vendor"})
VIRTUAL_ENVIRONMENT = "pyvenv.cfg"
# A list of patterns beyond these bounds would take long to match; nobody writes such a list by hand.
MAX_IGNORE_BYTES, MAX_SLOW_PATTERNS = 4 << 20, 2_000


class FolderRefusal(Exception):
    """A folder cannot be walked through as it is meant: its `.tierwallignore` cannot be used."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


class _Folder(Struct):
    """A folder on the way: its path, its path below the given folder, and the patterns of the folders above it."""

    path: str
    below: str
    rules: tuple[tuple[str, IgnoreRules], ...]


class FolderSearch:
    """Walks through one given folder. `exclude` are the patterns of the command line.

    `refuse` is told of folders that cannot be read. `settle` says which bytes of an ignore file count, or None.
    """

    def __init__(
        self,
        given: str,
        exclude: IgnoreRules | None,
        refuse: Callable[[str, OSError | Diagnostic], None],
        settle: Callable[[str, bytes], bytes | None] = lambda name, data: data,
    ) -> None:
        self._given = given
        self._exclude = exclude
        self._refuse = refuse
        self._settle = settle
        self._seen: set[tuple[int, int]] = set()
        self._root: str | None = None
        # Links to files and folders outside the given folder, which are not followed.
        self.leaving: list[str] = []

    def files(self) -> Iterator[str]:
        """Yield the files that may hold objects."""
        todo = [_Folder(self._given, "", ())]
        status = os.stat(self._given)
        self._seen.add((status.st_dev, status.st_ino))
        while todo:
            folder = todo.pop()
            try:
                with os.scandir(folder.path) as entries:
                    listed = sorted(entries, key=attrgetter("name"))
                names = {entry.name for entry in listed}
                if folder.below and VIRTUAL_ENVIRONMENT in names:
                    continue
                if IGNORE_FILE in names:
                    folder = self._with_rules(folder)
            except OSError as error:
                self._refuse(folder.path, error)
                continue
            except FolderRefusal as refusal:
                self._refuse(folder.path, refusal.diagnostic)
                continue
            folders: list[_Folder] = []
            for entry in listed:
                kept = self._kept(entry, folder)
                if isinstance(kept, _Folder):
                    folders.append(kept)
                elif kept:
                    yield kept
            todo += reversed(folders)

    def _kept(self, entry: os.DirEntry[str], folder: _Folder) -> _Folder | str | None:
        """Return the folder or file of an entry, or None if it is left out."""
        name = entry.name
        try:
            is_folder = entry.is_dir()
        except OSError:
            is_folder = False  # A link that leads to itself is reported when it is read.
        # kubectl reads hidden files, too, but nobody writes these: Emacs links `.#name` to nowhere while somebody edits
        # `name`, and macOS keeps attributes in `._name`.
        if name.startswith("." if is_folder else (".#", "._")):
            return None
        if not is_folder and not name.endswith(ENDINGS):
            return None
        if is_folder and name in SKIPPED:
            return None
        below = f"{folder.below}/{name}" if folder.below else name
        if (self._exclude is not None or folder.rules) and self._is_excluded(entry.path, below, is_folder, folder):
            return None
        if entry.is_symlink() and not self._is_inside(entry.path):
            self.leaving.append(entry.path)
            return None
        if not is_folder:
            return entry.path
        status = entry.stat()
        place = status.st_dev, status.st_ino
        if place in self._seen:
            return None
        self._seen.add(place)
        return _Folder(entry.path, below, folder.rules)

    def _is_excluded(self, path: str, below: str, is_folder: bool, folder: _Folder) -> bool:
        if self._exclude is not None:
            # People write a path as they see it in the output, or as it is below the folder.
            for shown in (below, os.path.normpath(path).lstrip("/")):
                excluded = self._exclude.excludes(os.fsencode(shown), is_folder)
                if excluded is not None:
                    return excluded
        for base, rules in reversed(folder.rules):
            excluded = rules.excludes(os.fsencode(below[len(base) :]), is_folder)
            if excluded is not None:
                return excluded
        return False

    def _is_inside(self, path: str) -> bool:
        if self._root is None:
            self._root = os.path.join(os.path.realpath(self._given), "")
        target = os.path.realpath(path)
        # A link to nothing is reported when it is read.
        return os.path.join(target, "").startswith(self._root) or not os.path.exists(target)

    def _with_rules(self, folder: _Folder) -> _Folder:
        from tierwall.resources.ignore import IgnoreRules

        path = os.path.join(folder.path, IGNORE_FILE)
        if not os.path.isfile(path) or (os.path.islink(path) and not self._is_inside(path)):
            return folder
        with open(path, "rb") as file:
            data = file.read(MAX_IGNORE_BYTES + 1)
        if len(data) > MAX_IGNORE_BYTES:
            raise _too_large(path, f"more than {MAX_IGNORE_BYTES >> 20} MiB of patterns")
        settled = self._settle(path, data)
        rules = IgnoreRules.read(settled) if settled is not None else None
        if rules is not None and rules.slow > MAX_SLOW_PATTERNS:
            raise _too_large(path, f"more than {MAX_SLOW_PATTERNS:,} patterns that begin and end with a wildcard")
        base = f"{folder.below}/" if folder.below else ""
        return _Folder(folder.path, folder.below, (*folder.rules, (base, rules))) if rules else folder


def _too_large(path: str, message: str) -> FolderRefusal:
    return FolderRefusal(Diagnostic("TW003", message, Position(path, 1, 1)))


def exclude_patterns(patterns: Sequence[str]) -> IgnoreRules | None:
    """Return the patterns of the command line; None without any pattern."""
    if not patterns:
        return None
    from tierwall.resources.ignore import IgnoreRules

    return IgnoreRules([os.fsencode(pattern) for pattern in patterns])
