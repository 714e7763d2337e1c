"""Compares the api plane: what every subject that a snapshot names may do, wherever rules or policies differ.

docs/compare.md#what-is-compared.

Subjects are the users, groups and ServiceAccounts of bindings and expressions, and any other user. Requests are those
that changed RBAC rules grant, where `*` stands for whatever no rule names, and those that changed policies can tell
apart: every value that they compare with, and another one. Nodes and webhooks are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, product
from typing import Any, NamedTuple, TypeAlias

from tierwall.analyze.api_mentions import MentionedValues, mentioned_values
from tierwall.analyze.difference import Difference, SettledVerdict, change_of, limits, permission_words
from tierwall.api.authorizers.cel_policies import CelPolicy, policies_of
from tierwall.api.authorizers.rbac import Binding, PolicyRule, bindings_by_subject
from tierwall.api.detail import ApiDetail
from tierwall.api.model import configured_authorizers
from tierwall.api.question import ApiQuestion, ask
from tierwall.core.answer import Omission
from tierwall.core.verdict import Verdict
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

OTHER_USER = "any-other-user"
AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
ANONYMOUS, ACCOUNT = "system:anonymous", "system:serviceaccount:"
# The most requests that are asked about one changed policy or rule; the most questions, for all subjects together, and
# the fewest requests that are asked for each of them all the same.
MAX_REQUESTS, MAX_QUESTIONS, FEWEST_REQUESTS = 4096, 100_000, 16
_VERBS = ("get", "list", "create", "update", "delete")


class NamedSubject(NamedTuple):
    """A user with the groups that are known of it, and its name in words."""

    user: str
    groups: tuple[str, ...]
    words: str


# Verbs, API groups, resources, names and URLs of a rule.
RuleKey: TypeAlias = tuple[frozenset[str], frozenset[str], frozenset[str], frozenset[str], tuple[str, ...]]
# The attributes of a request, without those of its subject.
RequestKey: TypeAlias = tuple[tuple[str, str], ...]


def api_differences(old: Snapshot, new: Snapshot) -> Iterator[Difference | Omission]:
    """Yield every request whose verdict or conditions change, subject by subject; then what was too much to ask."""
    limited: dict[Resource, None] = {}
    asked: set[tuple[NamedSubject, RequestKey]] = set()
    everywhere: dict[tuple[NamedSubject, RequestKey], object] = {}
    for subject, request in _requests(old, new, limited):
        if (subject, request) in asked:
            continue
        asked.add((subject, request))
        question = {"user": subject.user, "groups": list(subject.groups), **dict(request)}
        before, after = (_settled(snapshot, question) for snapshot in (old, new))
        change = change_of(before[0], after[0])
        anywhere = subject, tuple(attribute for attribute in request if attribute[0] != "namespace")
        if anywhere[1] == request:
            everywhere[anywhere] = before, after
        elif everywhere.get(anywhere) == (before, after):
            continue  # a namespace is named only where it differs from all others
        if change is None:
            continue
        reason = (before if change == "closes" else after)[1]
        may, conditions = permission_words(before[0], after[0])
        where = "" if "path" in question else f"in {question['namespace']}" if "namespace" in question else "everywhere"
        why = f"({'was ' if change == 'closes' else ''}{reason})" if reason else ""
        yield Difference(
            plane="api",
            change=change,
            question=question,
            before=before[0],
            after=after[0],
            words=(f"{subject.words} {may}", _action(question), " ".join(filter(None, (where, conditions, why)))),
            covers={"subject": subject.words} if subject.words != subject.user else {},
        )
    yield from limits(limited, "too many requests to compare them all; others may change as well")


def _action(question: dict[str, Any]) -> str:
    """Return a request in words: `get pods web`, `create any other resource`."""
    verb = "use any other verb on" if question["verb"] == "*" else question["verb"]
    if "path" in question:
        return f"{verb} {question['path']}"
    resource = question.get("resource", "")
    what = "any other resource" if resource == "*" else resource
    if "subresource" in question:
        what += f"/{question['subresource']}"
    if "group" in question:
        what += " of any group" if question["group"] == "*" else f".{question['group']}"
    return f"{verb} {what} {question['name']}" if "name" in question else f"{verb} {what}"


def _settled(snapshot: Snapshot, question: dict[str, Any]) -> tuple[SettledVerdict, str]:
    """Return the answer to a question, and the reason in words."""
    answer = ask(snapshot, ApiQuestion.from_dict(question))
    detail = answer.detail
    assert isinstance(detail, ApiDetail)
    conditions = tuple(
        f"{opinion.authorizer}: {condition.effect} if {condition.text}"
        for opinion in detail.condition_sets
        for condition in opinion.conditions
    )
    assert isinstance(answer.verdict, Verdict)
    never = answer.verdict is Verdict.CONDITIONAL and not detail.can_become_allowed
    return SettledVerdict(answer.verdict, answer.decided_by, conditions, never), detail.reason


def _requests(old: Snapshot, new: Snapshot, limited: dict[Resource, None]) -> Iterator[tuple[NamedSubject, RequestKey]]:
    """Yield the subjects and requests that a change can touch; note bindings and policies with too many of them."""
    everything = configured_authorizers(old) != configured_authorizers(new)
    content = _SameContent()
    rules = _changed_rules(old, new, content, everything)
    policies = _changed_policies(old, new, content, everything, bool(rules))
    if not rules and not policies:
        return
    mentioned = mentioned_values(policy for snapshot in (old, new) for policy in policies_of(snapshot))
    subjects = _subjects(old, new, mentioned)
    for (namespace, kind, name), changed in sorted(rules.items()):
        concerned = _concerned(subjects, kind, name)
        for rule in changed:
            limit = _limit(len(concerned))
            for number, request in enumerate(islice(_granted(rule, namespace, mentioned), limit + 1)):
                if number == limit:
                    limited |= dict.fromkeys(_granting(old, new, (namespace, kind, name), rule))
                else:
                    yield from ((subject, request) for subject in concerned)
    for policy in policies:
        of_policy = mentioned_values((policy,))
        possible = list(_possible_subjects(policy, subjects))
        limit = _limit(len(possible))
        requests = list(islice(_distinguished(policy, of_policy), limit + 1))
        if len(requests) > limit:
            limited[policy.resource] = None
            del requests[limit:]
        for subject in possible:
            yield from ((subject, request) for request in requests)


def _granting(old: Snapshot, new: Snapshot, key: tuple[str, str, str], rule: RuleKey) -> Iterator[Resource]:
    """Yield the bindings that grant a rule to a subject."""
    for snapshot in (old, new):
        for binding in bindings_by_subject(snapshot).get(key, ()):
            if any(_rule_key(granted) == rule for granted in binding.rules):
                yield binding.resource


def _limit(subjects: int) -> int:
    """Return how many requests may be asked for each of some subjects."""
    return min(MAX_REQUESTS, max(FEWEST_REQUESTS, MAX_QUESTIONS // max(1, subjects)))


class _SameContent:
    """Compares objects of two snapshots; each object is compared once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}

    def __call__(self, old: Resource | None, new: Resource | None) -> bool:
        if old is None or new is None:
            return old is new
        key = id(old), id(new)
        if key not in self._known:
            self._known[key] = old.identity == new.identity and old.has_same_content(new)
        return self._known[key]


def _changed_rules(
    old: Snapshot, new: Snapshot, same: _SameContent, everything: bool
) -> dict[tuple[str, str, str], list[RuleKey]]:
    """Return the rules that only one of the snapshots grants, by namespace and subject."""
    then, now = bindings_by_subject(old), bindings_by_subject(new)
    changed: dict[tuple[str, str, str], list[RuleKey]] = {}
    for key in dict.fromkeys((*then, *now)):
        before, after = then.get(key, ()), now.get(key, ())
        if not everything and _same_bindings(before, after, same):
            continue
        granted = [
            {_rule_key(rule): None for binding in side for rule in binding.rules if binding.is_sound(rule)}
            for side in (before, after)
        ]
        rules = [
            rule for rule in {**granted[0], **granted[1]} if everything or (rule in granted[0]) != (rule in granted[1])
        ]
        if rules:
            changed[key] = rules
    return changed


def _same_bindings(before: Sequence[Binding], after: Sequence[Binding], same: _SameContent) -> bool:
    return len(before) == len(after) and all(
        same(then.resource, now.resource)
        and same(then.role, now.role)
        and len(then.rules) == len(now.rules)
        and all(same(left.role, right.role) for left, right in zip(then.rules, now.rules, strict=True))
        for then, now in zip(before, after, strict=True)
    )


def _rule_key(rule: PolicyRule) -> RuleKey:
    return rule.verbs, rule.groups, rule.resources, rule.names, rule.urls


def _changed_policies(
    old: Snapshot, new: Snapshot, same: _SameContent, everything: bool, rules_differ: bool
) -> list[CelPolicy]:
    """Return the policies that differ, as they are in each snapshot; those that ask the chain depend on all rules."""
    then, now = ({policy.resource.identity: policy for policy in policies_of(side)} for side in (old, new))
    changed: list[CelPolicy] = []
    for identity in dict.fromkeys((*then, *now)):
        before, after = then.get(identity), now.get(identity)
        versions = [policy for policy in (before, after) if policy is not None]
        unchanged = (
            before is not None
            and after is not None
            and same(before.resource, after.resource)
            and before.failure == after.failure
            and not (rules_differ and "authorizer" in before.expression)
        )
        if everything or not unchanged:
            changed += versions
    return changed


def _subjects(old: Snapshot, new: Snapshot, mentioned: MentionedValues) -> list[NamedSubject]:
    """Return everyone that a binding or an expression of either snapshot names, and any other user."""
    named = {key[1:] for snapshot in (old, new) for key in bindings_by_subject(snapshot)}
    named |= {("User", user) for user in mentioned.of("user") if user}
    named |= {("Group", group) for group in mentioned.of("groups") if group}
    subjects = [_subject(kind, name) for kind, name in sorted(named)]
    return list(dict.fromkeys((*subjects, NamedSubject(OTHER_USER, (AUTHENTICATED,), "any other user"))))


def _subject(kind: str, name: str) -> NamedSubject:
    if kind == "Group":
        if name == AUTHENTICATED:
            return NamedSubject(OTHER_USER, (AUTHENTICATED,), "any other user")
        if name == UNAUTHENTICATED:
            return NamedSubject(ANONYMOUS, (UNAUTHENTICATED,), "an anonymous user")
        return NamedSubject(OTHER_USER, (name, AUTHENTICATED), f"a member of {name}")
    if name == ANONYMOUS:
        return NamedSubject(ANONYMOUS, (UNAUTHENTICATED,), "an anonymous user")
    if name.startswith(ACCOUNT):
        namespace = name.removeprefix(ACCOUNT).partition(":")[0]
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
        return NamedSubject(name, groups, name)
    return NamedSubject(name, (AUTHENTICATED,), name)


def _concerned(subjects: Iterable[NamedSubject], kind: str, name: str) -> list[NamedSubject]:
    """Return the subjects that a rule for this user or group applies to."""
    if kind == "User":
        return [_subject(kind, name)]
    return [subject for subject in subjects if name in subject.groups]


def _possible_subjects(policy: CelPolicy, subjects: Iterable[NamedSubject]) -> Iterator[NamedSubject]:
    """Return the subjects that a policy can apply to."""
    demanded = dict(policy.parsed.demands) if policy.parsed is not None else {}
    users, groups = demanded.get("user"), demanded.get("groups")
    for subject in subjects:
        if (users is None or subject.user in users) and (groups is None or not groups.isdisjoint(subject.groups)):
            yield subject


def _granted(rule: RuleKey, namespace: str, mentioned: MentionedValues) -> Iterator[RequestKey]:
    """Yield the requests that a rule grants in a namespace, or everywhere if the namespace is empty.

    A wildcard is asked as `*`, which stands for everything that has no name, and as what expressions name.
    """
    verbs, groups, resources, names, urls = rule
    all_verbs = _wildcard(verbs, mentioned.of("verb"))
    namespaces = (namespace,) if namespace else ("", *sorted(mentioned.of("namespace") - {""}))
    for place, verb, group, resource, name in product(
        namespaces,
        all_verbs,
        _wildcard(groups, mentioned.of("group")),
        _wildcard(resources, mentioned.of("resource")),
        sorted(names) or ("",),
    ):
        plural, _, subresource = resource.partition("/")
        yield _request(verb=verb, group=group, resource=plural, subresource=subresource, namespace=place, name=name)
    if not namespace:
        yield from (_request(verb=verb, path=url) for url in urls for verb in all_verbs)


def _wildcard(values: frozenset[str], named: frozenset[str]) -> list[str]:
    return ["*", *sorted(named - {"*", ""})] if "*" in values else sorted(values)


def _distinguished(policy: CelPolicy, mentioned: MentionedValues) -> Iterator[RequestKey]:
    """Yield the requests that an expression can tell apart by the values that it compares with."""
    demanded = dict(policy.parsed.demands) if policy.parsed is not None else {}

    def values(field: str, *others: str) -> Sequence[str]:
        if field in demanded:
            return sorted(demanded[field])
        named = sorted(mentioned.of(field))
        return [*named, *[other for other in others if other not in named]]

    if any(mentioned.of("path")) and not policy.namespace:
        yield from (_request(verb=verb, path=path) for path in values("path") if path for verb in values("verb", "get"))
    if any(demanded.get("path", ())):
        return
    places = (policy.namespace,) if policy.namespace else sorted(values("namespace", "", "default"))
    attributes = {
        "namespace": places,
        "verb": values("verb", *_VERBS),
        "group": values("group", ""),
        "version": values("version", ""),
        "resource": values("resource", "pods"),
        "subresource": values("subresource", ""),
        "name": values("name", ""),
    }
    for combination in product(*attributes.values()):
        yield _request(**dict(zip(attributes, combination, strict=True)))


def _request(**attributes: str) -> RequestKey:
    return tuple((key, value) for key, value in attributes.items() if value)
