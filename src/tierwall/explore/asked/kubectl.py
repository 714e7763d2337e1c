"""Commands of kubectl as questions: `auth can-i …`, and `get pods --as alice`, which asks whether alice may.

A command is read if what it asks of the API follows from its words. Flags that select objects, files and changes that
are applied do not say that, and leave a command unread.
"""

from __future__ import annotations

import re

from tierwall.api.resource_names import api_resources, is_cluster_scoped
from tierwall.explore import named
from tierwall.explore.asked import api
from tierwall.explore.asked.meaning import Meanings, bounded, unclear
from tierwall.resources.snapshot import Snapshot

_COMMAND = re.compile(r"(?:kubectl|k|oc)\s+(?P<rest>\S.*)", re.IGNORECASE)
# Flags that change nothing about what is asked, with a value and without.
_IDLE_VALUES = ("-o", "--output", "-c", "--container", "--replicas", "--image", "--tail", "--since")
_IDLE = ("-i", "-t", "-it", "-ti", "--stdin", "--tty", "--now", "--show-labels", "--no-headers", "--ignore-not-found")
_NAMESPACE, _ALL_NAMESPACES = ("-n", "--namespace"), ("-A", "--all-namespaces", "--all-namespaces=true")
# What a command asks for an object that it names, and for all objects of a kind.
_OF_ONE = {"get": "get", "describe": "get", "delete": "delete", "edit": "patch", "scale": "patch"}
_OF_ALL = {"get": "list", "describe": "list", "create": "create"}
# What a command asks for a resource below a pod.
_BELOW_PODS = {
    "logs": ("get", "pods/log"),
    "exec": ("create", "pods/exec"),
    "attach": ("create", "pods/attach"),
    "port-forward": ("create", "pods/portforward"),
}
_WITH_GROUPS = unclear("a user with groups cannot be typed here", "ask on the page Permissions")


def command(snapshot: Snapshot, text: str) -> Meanings | None:
    """Return what a command asks of the API; None for any other text.

    `auth can-i` is a form of its own. Who does not say where means the namespace of a context, which nobody knows here.
    """
    match = _COMMAND.fullmatch(text)
    if match is None or text.split()[0] in (*named.users(snapshot), *named.ends(snapshot)):
        return None
    if re.match(r"auth\s|tierwall\s", match["rest"], re.IGNORECASE):
        return None
    words, flags = _split(match["rest"])
    subjects = [*flags.get("--as", ()), *(f"group {group}" for group in flags.get("--as-group", ()))]
    if len(subjects) > 1:
        return _WITH_GROUPS
    request = _request(snapshot, words) if "" not in flags else None
    inside = [name for flag in _NAMESPACE for name in flags.get(flag, ())]
    if request is None or len(inside) > 1:
        return bounded(iter(()), "the command does not say alone what it asks", "write `alice create pods in dev`")
    verb, resource = request
    if not inside and not _is_of_cluster(snapshot, resource):
        inside = ["default"] if "-A" not in flags else []
        # Both are offered: the namespace of a context that sets none, and every one.
        inside = [*inside, ""]
    places = [f" in {namespace}" if namespace else "" for namespace in inside or [""]]
    who = (subjects or ["I"])[0]
    return bounded(choice for place in places for choice in api.requests(snapshot, who, (verb,), f"{resource}{place}"))


def _split(text: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the words of a command up to `--`, and its flags; a flag that may count is the empty one."""
    flags: dict[str, list[str]] = {}
    words, kept = iter(text.split()), list[str]()
    for word in words:
        flag, has_value, value = word.partition("=")
        if word == "--":
            break
        if word in _ALL_NAMESPACES:
            flags["-A"] = []
        elif flag in (*_NAMESPACE, "--as", "--as-group", *_IDLE_VALUES):
            value = value if has_value else next(words, "")
            flags.setdefault(flag if value and not value.startswith("-") else "", []).append(value)
        elif word.startswith("-"):
            flags.update({} if word in _IDLE else {"": []})
        else:
            kept.append(word)
    return kept, flags


def _request(snapshot: Snapshot, words: list[str]) -> tuple[str, str] | None:
    """Return the verb that a command asks for, and the resource with its name; None if it says neither."""
    name, what = words[0] if words else "", words[1:]
    if name in _BELOW_PODS and what:
        verb, below = _BELOW_PODS[name]
        kind, _, pod = what[0].rpartition("/")
        return (verb, f"{below} {pod}") if kind in ("", "po", "pod", "pods") else None
    if len(what) == 1 and what[0].count("/") == 1:
        what = what[0].split("/")
    if not what or not all(what) or "," in what[0] or "/" in what[0] or not api.is_resource(snapshot, what[0]):
        return None
    if name == "create":
        # Nobody asks for a name that is new.
        return "create", what[0]
    if len(what) == 2 and name in _OF_ONE:
        return _OF_ONE[name], f"{what[0]}{'/scale' * (name == 'scale')} {what[1]}"
    return (_OF_ALL[name], what[0]) if len(what) == 1 and name in _OF_ALL else None


def _is_of_cluster(snapshot: Snapshot, resource: str) -> bool:
    word = resource.split()[0].lower().partition("/")[0].partition(".")[0]
    served = [each for each in api_resources(snapshot) if word in (each.plural, *each.other_names)]
    return bool(served) and all(is_cluster_scoped(snapshot, each.group, each.plural) for each in served)


def as_sentence(rest: str) -> str:
    """Return what `kubectl auth can-i` asks, in the order of a sentence; nothing if it is about a user with groups."""
    words, subjects = iter(rest.split()), list[str]()
    kept: list[str] = []
    for word in words:
        flag, _, value = word.partition("=")
        if flag == "--subresource":
            kept = [*kept[:1], f"{kept[1]}/{value or next(words, '')}", *kept[2:]] if len(kept) > 1 else kept
        elif flag in ("--as", "--as-group"):
            value = value or next(words, "")
            subjects.append(value if flag == "--as" else f"group {value}")
        else:
            kept.append(word)
    return "" if len(subjects) > 1 else " ".join((*(subjects or ["I"]), *kept))
