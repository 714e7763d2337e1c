"""Questions about permissions: may a user do this, and what may a user or the members of a group do at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from tierwall.api.resource_names import VERBS, api_resources
from tierwall.explore import named
from tierwall.explore.asked import forms
from tierwall.explore.asked.ends import pod_namespaces
from tierwall.explore.asked.meaning import MAX_CHOICES, MAX_COMPARED, Choice, asking
from tierwall.explore.page import address
from tierwall.resources.snapshot import Snapshot


def permissions(snapshot: Snapshot, name: str, namespace: str = "") -> Iterator[Choice]:
    """Yield the permissions of the users and of the group that have a name."""
    users = named.users(snapshot)
    for user in list(named.called(users, name)) or _in_part(users, name):
        words = f"What {user} may do{_inside(namespace)}"
        yield Choice(words, address("/permissions", user=user, namespace=namespace))
    if name in named.groups(snapshot):
        yield _of_members(name, namespace)


def all_of(snapshot: Snapshot, who: str, kind: str, namespace: str) -> Iterator[Choice]:
    """Yield what a question about all permissions of somebody means; `kind` is what was said to be: `group `, say."""
    is_account, is_group = forms.is_account(kind), forms.is_group(kind)
    if is_group:
        yield _of_members(who, namespace)
        return
    known = list(permissions(snapshot, who, namespace))
    name = f"{named.ACCOUNT}{who.replace('/', ':', 1)}" if is_account and "/" in who else who
    words = f"What {name} may do{_inside(namespace)}"
    yield from known
    if name not in named.groups(snapshot) and not any(named.called(named.users(snapshot), who)):
        yield Choice(words, address("/permissions", user=name, namespace=namespace))


def _of_members(group: str, namespace: str) -> Choice:
    words = f"What members of {group} may do{_inside(namespace)}"
    return Choice(words, address("/permissions", group=group, namespace=namespace))


def _inside(namespace: str) -> str:
    return f" in {namespace}" if namespace else ""


def verb_of(word: str) -> str:
    """Return the verb that a word is, also in `alice creates pods`; empty for any other word."""
    word = word.lower()
    return next((verb for verb in (word, word.removesuffix("s"), word.removesuffix("es")) if verb in VERBS), "")


def verbs_of(word: str) -> tuple[str, ...]:
    """Return the verbs that a word may mean: those of the API, or what people say for them."""
    if verb := verb_of(word):
        return (verb,)
    return forms.SPOKEN_VERBS.get(word.lower(), ()) or forms.SPOKEN_VERBS.get(word.lower().removesuffix("s"), ())


def is_resource(snapshot: Snapshot, text: str) -> bool:
    """Whether a text begins with a resource of the API: `pods in dev`."""
    word = text.split()[0].lower() if text.split() else ""
    return any(
        word.partition(".")[0].partition("/")[0] in (served.plural, *served.other_names)
        for served in api_resources(snapshot)
    )


def below_pods(snapshot: Snapshot, verb: str, rest: str) -> str:
    """Return what somebody does inside a pod, as a resource below pods: `exec into web-0` creates `pods/exec`."""
    rest = forms.SOME.sub("", forms.TO.sub("", rest, count=1), count=1)
    resource, _, name = rest.partition(" ")
    return f"pods/{verb} {name if is_resource(snapshot, resource) else rest}"


def scaled(rest: str) -> str:
    """Return what somebody scales, as the resource that has the number: `deployments/scale web`."""
    resource, *name = forms.SOME.sub("", rest, count=1).replace("/", " ").split()
    return " ".join((f"{resource}/scale", *name))


def requests(snapshot: Snapshot, who: str, verbs: tuple[str, ...], rest: str) -> Iterator[Choice]:
    """Yield the questions whether somebody may do something; nothing if the rest is not a resource with a name."""
    read = _read(snapshot, rest)
    if read is None:
        return
    if who.lower() in forms.ANYBODY and who not in named.users(snapshot):
        # Nobody knows all users, so even one is a choice and no answer.
        yield Choice("What each user may do", address("/permissions"))
        subjects = [(user, "") for user in named.users(snapshot)[: MAX_CHOICES - 1]]
    else:
        subjects = list(_subjects(snapshot, who))
    for user, group in subjects:
        shown = user or f"a member of {group}"
        for verb in verbs:
            for words, terms in read:
                href = asking("api", user=user, groups=group, verb=verb, **terms)
                yield Choice(f"May {shown} {verb} {words}?", href, "api")


def _subjects(snapshot: Snapshot, who: str) -> Iterator[tuple[str, str]]:
    """Yield the users and groups that may be meant. Who is not known may exist all the same, and is the last choice."""
    if match := forms.MEMBERS.fullmatch(who):
        yield "", match["name"]
        return
    users = named.users(snapshot)
    if match := forms.ACCOUNT.fullmatch(who):
        name = f"{match['namespace']}/{match['name']}" if match["namespace"] else match["name"]
        known = [user for user in named.called(users, name) if user.startswith(named.ACCOUNT)]
        yield from ((user, "") for user in known)
        if not known:
            yield (f"{named.ACCOUNT}{name.replace('/', ':', 1)}" if "/" in name else name), ""
        return
    if who in users:
        yield who, ""
        return
    yield from ((user, "") for user in named.called(users, who))
    if who in named.groups(snapshot):
        yield "", who
    yield from (
        (user, "") for user in (_in_part(users, who) or get_close_matches(who, users[:MAX_COMPARED], n=3, cutoff=0.8))
    )
    yield who, ""


def _in_part(users: Sequence[str], name: str) -> list[str]:
    """Return the users of whose names this is a part: `jane` of `jane@example.com` or `oidc:jane`."""
    return [user for user in users[:MAX_COMPARED] if name in (user.partition("@")[0], user.partition(":")[2])]


def _read(snapshot: Snapshot, rest: str) -> list[tuple[str, dict[str, str]]] | None:
    """Return what a resource, its name and its namespace may be, in words and as terms; None if there is more."""
    rest = forms.EVERYWHERE.sub("", f" {rest}").strip()
    namespace = ""
    if match := forms.IN.search(f" {rest}"):
        namespace = match[1]
        rest = f" {rest}".replace(match[0], "", 1).strip()
    rest = forms.LOGS.sub("pods/log", rest, count=1) if forms.LOGS.match(rest) else rest
    resource, _, name = forms.SOME.sub("", rest, count=1).partition(" ")
    name = forms.CALLED.sub("", name.strip(), count=1)
    if not resource or resource.startswith("-") or name.startswith("-") or " " in name:
        return None
    if resource.startswith("/"):
        return [(resource, {"path": resource})] if not name else None
    # A name may be that of a namespace without its `in`.
    meant = [(name, namespace), *([("", name)] if name and not namespace and _is_namespace(snapshot, name) else ())]
    return [
        (
            f"{f'{resource} {called}'.strip()}{_inside(inside)}",
            {"resource": resource, "name": called, "namespace": inside},
        )
        for called, inside in meant
    ]


def _is_namespace(snapshot: Snapshot, name: str) -> bool:
    return name in pod_namespaces(snapshot) or snapshot.get("", "Namespace", "", name) is not None


def subject_and_rest(snapshot: Snapshot, text: str) -> tuple[str, str]:
    """Return the subject that a question begins with, which may be several words, and the rest."""
    for name in named.spaced(snapshot):
        if text.startswith(f"{name} "):
            return name, text[len(name) :].strip()
    for form in (forms.MEMBERS, forms.ACCOUNT):
        if match := form.match(text):
            return match[0].strip(), text[match.end() :].strip()
    who, _, rest = forms.USER.sub("", text, count=1).partition(" ")
    return who, rest.strip()
