"""Stand-ins for parts of names that sort as the parts do (docs/clusters.md#redact).

Names break ties, so the order of names is part of every answer. Parts that are kept divide the others into runs; the
stand-ins of a run have a prefix that sorts between the kept parts around it, and numbers of one width. Separators in
names sort before letters and digits, so whole names keep their order if their parts do. A colon sorts after digits:
where `team:x` and `team2` are names, the stand-in of `team2` is that of `team` with digits behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

# `n` as in name, then letters ever farther from it.
_DIGITS = frozenset("0123456789")
_LETTERS = sorted("abcdefghijklmnopqrstuvwxyz", key=lambda letter: (abs(ord(letter) - ord("n")), letter))


def stand_ins(tokens: Set[str], kept: Set[str], bases: Set[str] = frozenset()) -> dict[str, str]:
    """Return a stand-in for each token, in the order of the tokens and of those that are kept.

    A stand-in is neither a token nor kept. A token has none if no word fits between its kept neighbours. `bases` are
    tokens that a colon follows somewhere.
    """
    below = _below(tokens, bases & tokens)
    inner = {token for members in below.values() for token in members}
    outer = tokens - inner
    width = len(str(len(outer)))
    # Prefixes whose numbered words could be confused with tokens.
    taken = {token[:-width] for token in (*tokens, *kept) if token[-width:].isdecimal()}
    result: dict[str, str] = {}
    number = 0
    for low, run, high in _runs(outer, kept):
        prefix = _prefix(low, high, width, taken)
        for token in run if prefix is not None else ():
            number += 1
            result[token] = f"{prefix}{number:0{width}}"
    # Longer tokens may be below shorter ones that are themselves below others.
    for base in sorted(below, key=len):
        digits = len(str(len(below[base])))
        for place, token in enumerate(below[base], 1):
            if base in result:
                result[token] = f"{result[base]}{place:0{digits}}"
    return result


def _below(tokens: Set[str], bases: Set[str]) -> dict[str, list[str]]:
    """Return, by base, the tokens that are the base and a digit and more; each below its longest base."""
    below: dict[str, list[str]] = {}
    for token in sorted(tokens) if bases else ():
        for end in range(len(token) - 1, 0, -1):
            if token[end] in _DIGITS and token[:end] in bases:
                below.setdefault(token[:end], []).append(token)
                break
    return below


def _runs(tokens: Set[str], kept: Set[str]) -> Iterator[tuple[str, list[str], str | None]]:
    """Yield the tokens between two kept ones, with both; a token that is kept at other places comes after itself."""
    low = ""
    run: list[str] = []
    for token in sorted(tokens | kept):
        if token in kept:
            if run:
                yield low, run, token
            low, run = token, []
        if token in tokens:
            run.append(token)
    if run:
        yield low, run, None


def _prefix(low: str, high: str | None, width: int, taken: Set[str]) -> str | None:
    stems = dict.fromkeys(
        ("", *(low[:end] for end in range(1, len(low) + 1)), *((high or "")[:end] for end in range(len(high or ""))))
    )
    for stem in stems:
        for letters in (*(stem + letter for letter in _LETTERS), stem + "x0", stem + "0"):
            first, last = letters + "0" * width, letters + "9" * width
            if low < first and (high is None or last < high) and letters not in taken:
                return letters
    return None
