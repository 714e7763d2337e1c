"""The file of a baseline (docs/adopting.md#what-a-baseline-is): read, and written whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierwall.cli.command import fail, print_line

if TYPE_CHECKING:
    from tierwall.analyze.baseline import BaselineSet, FileNaming
    from tierwall.analyze.review import ReviewResult


def baseline_of(path: str) -> BaselineSet:
    """Read a baseline. InputError says what is wrong with it, by line."""
    from tierwall.analyze.baseline import BROKEN, MAX_BYTES, BaselineSet
    from tierwall.core.diagnostics import Diagnostic, InputError
    from tierwall.core.source import Position

    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = f"make it with --write-baseline {path}" if isinstance(error, FileNotFoundError) else ""
        raise InputError([Diagnostic(BROKEN, f"{reason.lower()}", Position(path, 1, 1), hint=hint)]) from None
    return BaselineSet.parse(data, path, _naming(path))


def _naming(path: str) -> FileNaming:
    """Name files relative to the folder of a baseline."""
    import os

    folder = os.path.dirname(path) or os.curdir
    return lambda file: os.path.relpath(file, folder).replace(os.sep, "/")


def write_baseline(reviewed: ReviewResult, path: str) -> ReviewResult:
    """Write a baseline that accepts every finding, and return the result with it."""
    import os

    from tierwall.analyze.baseline import BaselineSearch, BaselineSet, entries_removed
    from tierwall.analyze.review import AcceptedFinding, ReviewResult
    from tierwall.core.diagnostics import Diagnostics
    from tierwall.core.words import count_noun

    by_baseline = [entry.finding for entry in reviewed.accepted if entry.by == "baseline"]
    written = BaselineSet.of([*by_baseline, *reviewed.known, *reviewed.findings], _naming(path))
    if reviewed.findings.unreadable:
        print_line(f"{path}: not written, because some input cannot be read", err=True)
        return reviewed
    # Only a baseline is replaced, not a manifest that is named by mistake.
    removed = entries_removed(baseline_of(path), written) if os.path.exists(path) else 0
    _replace(path, str(written))
    words = f"{path}: {count_noun(len(written.entries), 'finding')} accepted"
    print_line(f"{words}, {removed} removed" if removed else words, err=True)
    search = BaselineSearch(written)
    accepted, left = [], []
    for finding in reviewed.findings:
        if search.accepts(finding):
            accepted.append(AcceptedFinding(finding, "baseline"))
        else:
            left.append(finding)
    return ReviewResult(Diagnostics(left), (*reviewed.accepted, *accepted), reviewed.known)


def _replace(path: str, text: str) -> None:
    """Write a file at once: another program sees the old text or the new one, never a part."""
    import os
    import tempfile

    try:
        folder, name = os.path.split(os.path.realpath(path))
        mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o666 & ~_umask()
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode())
                os.fchmod(file.fileno(), mode)
            os.replace(temporary, os.path.join(folder, name))
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        fail(f"{path}: {(error.strerror or 'cannot be written').lower()}")


def _umask() -> int:
    import os

    mask = os.umask(0)
    os.umask(mask)
    return mask
