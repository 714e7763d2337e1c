"""The place that a question names, found in the snapshot, or all that is wrong with it.

docs/semantics.md#nothing-about-a-place-is-inferred, docs/semantics.md#rules-go-by-number-or-name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tierwall.attach.listener import Listener, listeners
from tierwall.attach.place import (
    BACKEND,
    GATEWAY,
    GRPC_ROUTE,
    HTTP_ROUTE,
    INFERENCE_POOL,
    LISTENER_SET,
    SERVICE,
    X_LISTENER_SET,
    service_port,
)
from tierwall.attach.section import WORDS, rule_name, rules, sections
from tierwall.core.diagnostics import Diagnostic, near_miss
from tierwall.core.reference import Reference
from tierwall.gateway.levels import Asked
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import KindKey, Snapshot

PLACE_KEYS = ("gateway", "listener", "listenerSet", "route", "rule", "backend", "backendSection")
ROUTE_KINDS = {key[1]: key for key in (HTTP_ROUTE, GRPC_ROUTE)}
BACKEND_KINDS = {key[1]: key for key in (SERVICE, BACKEND, INFERENCE_POOL)}


class Finder:
    """Finds what a question names and collects what is wrong."""

    def __init__(self, snapshot: Snapshot, problems: list[Diagnostic]) -> None:
        self.snapshot = snapshot
        self.problems = problems

    def wrong(self, message: str, hint: str = "") -> None:
        """One problem of the question."""
        self.problems.append(Diagnostic("TW703", message, hint=hint))

    def by_name(self, key: str, value: object, kinds: Iterable[KindKey]) -> Resource | None:
        """The object that a `namespace/name` names."""
        if not isinstance(value, str) or value.count("/") != 1 or not all(value.split("/")):
            self.wrong(f"expected `namespace/name` as `{key}`, found `{value}`")
            return None
        namespace, _, name = value.partition("/")
        found = [one for kind in kinds if (one := self.snapshot.get(*kind, namespace, name)) is not None]
        if found:
            return found[0]
        known = (f"{one.namespace}/{one.name}" for kind in kinds for one in self.snapshot.of_kind(*kind))
        self.wrong(f"there is no {next(iter(kinds))[1]} `{value}`", near_miss(value, known))
        return None

    def by_reference(self, key: str, value: object, kinds: Mapping[str, KindKey]) -> Resource | None:
        """The object that a `Kind/namespace/name` names, if its kind is one of these."""
        form = f"expected `Kind/namespace/name` as `{key}`"
        if not isinstance(value, str):
            self.wrong(f"{form}, found `{value}`")
            return None
        try:
            reference = Reference.parse(value)
        except ValueError:
            reference = Reference("", "", "")
        if not reference.namespace or reference.section:
            self.wrong(f"{form}, found `{value}`")
            return None
        if reference.kind not in kinds:
            words = f"expected one of {', '.join(kinds)} as kind of `{key}`, found `{reference.kind}`"
            self.wrong(words, near_miss(reference.kind, kinds))
            return None
        found = self.snapshot.get(*kinds[reference.kind], reference.namespace, reference.name)
        if found is None:
            known = [str(one.reference) for kind in kinds.values() for one in self.snapshot.of_kind(*kind)]
            self.wrong(f"there is no {reference}", near_miss(value, known))
        return found

    def listener(self, value: object, owner: Resource) -> Listener | None:
        """The listener of that name."""
        names = []
        for one in listeners(owner):
            if one.name == value:
                return one
            names.append(one.name)
        self.wrong(f"there is no listener `{value}` in {owner.reference}", _near(value, names, "listeners"))
        return None

    def rule(self, value: object, route: Resource) -> int | None:
        """The number of a rule that is named by number or by name."""
        found = rules(route)
        if type(value) is int:
            if 0 <= value < len(found):
                return value
            self.wrong(f"there is no rule {value} in {route.reference}", f"it has {len(found)}, counted from 0")
            return None
        if not isinstance(value, str) or not value:
            self.wrong(f"expected a number from 0 or a rule name as `rule`, found `{value}`")
            return None
        names = [rule_name(one) for one in found]
        if value in names:
            return names.index(value)
        named = [name for name in names if name]
        self.wrong(f"there is no rule named `{value}` in {route.reference}", _near(value, named, "named rules"))
        return None

    def section(self, value: object, backend: Resource) -> str:
        """The section of a backend, in its one spelling."""
        key = backend.group, backend.kind
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            self.wrong(f"expected a port number or a sub-backend name as `backendSection`, found `{value}`")
            return ""
        if key == INFERENCE_POOL:
            return ""  # pools have no sections: whatever is named is ignored
        text = service_port(value) if key == SERVICE else str(value)
        known = sections(backend)
        # A Service that lists no ports (a headless one, or a stub) is taken at the question's word.
        if text in known or (key == SERVICE and not known and text.isdigit()):
            return text
        word = WORDS[key]
        self.wrong(f"there is no {word} `{value}` in {backend.reference}", _near(value, known, f"{word}s"))
        return ""


def _near(value: object, known: Iterable[str], word: str) -> str:
    names = list(known)
    return near_miss(str(value), names) or (f"its {word} are {', '.join(names)}" if names else f"it has no {word}")


def asked_place(snapshot: Snapshot, question: Mapping[str, Any], problems: list[Diagnostic]) -> Asked:
    """The place a question names; what is wrong with it is added to `problems`."""
    find = Finder(snapshot, problems)
    given = {key: question[key] for key in PLACE_KEYS if question.get(key) is not None}
    for key, needs in (
        ("listener", ("gateway", "listenerSet")),
        ("rule", ("route",)),
        ("backendSection", ("backend",)),
    ):
        if key in given and not any(one in given for one in needs):
            find.wrong(f"`{key}` needs `{'` or `'.join(needs)}` beside it")
    if not given:
        find.wrong("expected at least one of `gateway`, `listenerSet`, `route`, `backend`, found none")
    gateway = listener_set = listener = route = rule = backend = None
    section = ""
    if "gateway" in given:
        gateway = find.by_name("gateway", given["gateway"], (GATEWAY,))
    if "listenerSet" in given:
        listener_set = find.by_name("listenerSet", given["listenerSet"], (LISTENER_SET, X_LISTENER_SET))
    owner = listener_set if "listenerSet" in given else gateway
    if "listener" in given and owner is not None:
        listener = find.listener(given["listener"], owner)
    if "route" in given:
        route = find.by_reference("route", given["route"], ROUTE_KINDS)
    if "rule" in given and route is not None:
        rule = find.rule(given["rule"], route)
    if "backend" in given:
        backend = find.by_reference("backend", given["backend"], BACKEND_KINDS)
    if "backendSection" in given and backend is not None:
        section = find.section(given["backendSection"], backend)
    return Asked(gateway, listener_set, listener, route, rule, backend, section)
