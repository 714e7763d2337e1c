"""Expressions of any form give the same result for names and for their stand-ins (docs/clusters.md#redact)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.randomness import seeds
from tests.redact.renamed import outcome, rename_outcome, rename_question, snapshot_of
from tierwall.redact.redaction import redact

Object = dict[str, Any]

NAMESPACES = ("team-a", "team-b", "team", "team2", "default", "kube-system", "web.app")
USERS = ("alice", "alice@corp.example", "team-a", "oidc:bob", "Bob", "system:serviceaccount:team-a:web", "10.1.2.3")
GROUPS = ("team-a", "oidc:team-b", "developers", "system:authenticated", "system:serviceaccounts:team-a", "a_b")
NAMES = ("web", "web-0", "team", "db", "default", "alice")
LABELS = ("team", "acme.example/team", "app.kubernetes.io/name")
VALUES = ("team-a", "team", "Web_App", "10.1.2.3", "alice")
EVERY = tuple(dict.fromkeys((*NAMESPACES, *USERS, *GROUPS, *NAMES)))
# They are parts of names, or of no name.
PARTS = ("te", "team-", "a", "-", "", ":", "alice@", "@corp.example", "lic", "system:serviceaccount:", "web", "zz", ".")
PATTERNS = ("^team-[a-z]$", "^[a-z0-9.-]+$", "team|web", "^system:", "@corp[.]example$", ".*", "^[^:]+:[^:]+$", "[A-Z]")


class ExpressionWriter:
    """Writes random expressions about names."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def constant(self) -> str:
        text = self._rng.choice(EVERY)
        return self._rng.choice((f'"{text}"', f"'{text}'", f'r"{text}"'))

    def text(self, depth: int, bound: str = "") -> str:
        """Write an expression that is a string."""
        rng = self._rng
        label = rng.choice(LABELS)
        plain = [
            *("request.namespace", "request.name", "request.userInfo.username", "object.metadata.name"),
            *(f'object.metadata.labels["{label}"]', "object.metadata.labels.team"),
            *("object.metadata.namespace", f'object.metadata.?labels[?"{label}"].orValue({self.constant()})'),
            *(self.constant() for _ in range(6)),
            *([bound] * 8 if bound else []),
        ]
        if depth <= 0 or rng.random() < 0.5:
            return rng.choice(plain)
        first, second = self.text(depth - 1, bound), self.text(depth - 1, bound)
        return rng.choice(
            (
                f'({first} + "{rng.choice((":", "-", "/", "x"))}" + {second})',
                f"({first} + {second})",
                f"({self.truth(depth - 1, bound)} ? {first} : {second})",
                f"{first}.lowerAscii()",
                f"{first}.upperAscii()",
                f"{first}.trim()",
                f'{first}.split("{rng.choice((":", "-", "."))}")[0]',
                f"[{first}, {second}][{rng.choice((0, 1))}]",
                f"{{{first}: {second}}}[{self.text(depth - 1, bound)}]",
                f'[{first}, {second}].join("{rng.choice(("-", ":", ""))}")',
                f"{first}.substring(0, 1)",
                f'{first}.replace("{rng.choice(PARTS)}", "x")',
                f"cel.bind(x, {first}, [x, {second}][0])",
            )
        )

    def truth(self, depth: int, bound: str = "") -> str:
        """Write an expression that is true or false."""
        rng = self._rng
        first, second = self.text(depth - 1, bound), self.text(depth - 1, bound)
        part = rng.choice((*PARTS, *EVERY))
        plain = (
            *(f"{first} == {second}", f"{first} != {second}", f"{first} == {self.constant()}"),
            f"{first} {rng.choice(('<', '<=', '>', '>='))} {second}",
            f"{first} in [{second}, {self.constant()}, {self.constant()}]",
            f"{first} in {{{self.constant()}: 1, {second}: 2}}",
            f'{first}.{rng.choice(("startsWith", "endsWith", "contains"))}("{part}")',
            f"{first}.startsWith({second})",
            f'{first}.matches("{rng.choice(PATTERNS)}")',
            f"size({first}) {rng.choice(('>', '==', '<'))} {rng.choice((0, 1, 4))}",
            f"{self.constant()} in request.userInfo.groups",
            f'"{rng.choice(LABELS)}" in object.metadata.labels',
            "has(object.metadata.labels.team)",
            f"object.spec.owner == {self.constant()}",
            f"object.spec.owner in [{self.constant()}, {self.constant()}]",
            f'{first}.indexOf("{part}") > 0',
        )
        if depth <= 0 or bound:
            return rng.choice(plain)
        inner, other = self.truth(depth - 1, "g"), self.truth(depth - 1)
        return rng.choice(
            (
                *plain,
                f"({self.truth(depth - 1)} && {other})",
                f"({self.truth(depth - 1)} || {other})",
                f"!({other})",
                f"request.userInfo.groups.exists(g, {inner})",
                f"request.userInfo.groups.all(g, {inner})",
                f"request.userInfo.groups.filter(g, {inner}).size() > 0",
                f"[{self.constant()}, {self.constant()}].exists(g, {inner})",
                f"request.userInfo.groups.map(g, {self.text(1, 'g')}).exists(h, h == {second})",
                f"object.metadata.labels.exists(g, {inner})",
                f"sets.intersects(request.userInfo.groups, [{self.constant()}, {self.constant()}])",
                f"sets.contains([{self.constant()}, {second}], request.userInfo.groups)",
                f"[{first}, {second}].distinct().size() == {rng.choice((1, 2))}",
                f"request.userInfo.groups.size() > {rng.choice((0, 1))}",
                f"request.userInfo.groups.exists_one(g, {inner})",
                f"{first} in request.userInfo.groups.map(g, {self.text(1, 'g')})",
            )
        )


def _object(api: str, kind: str, name: str, namespace: str = "", **fields: Any) -> Object:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}


def world(rng: Random, expressions: list[str]) -> list[Object]:
    """Return objects with all names, and a policy for each expression."""
    out = [_object("v1", "Namespace", name) for name in NAMESPACES]
    out += [_object("v1", "ServiceAccount", name, rng.choice(NAMESPACES)) for name in NAMES if name != "default"]
    # Names that stand nowhere else are labels, too.
    for number, name in enumerate(VALUES):
        out[number]["metadata"]["labels"] = dict.fromkeys(LABELS, name)
    rbac = "rbac.authorization.k8s.io"
    subjects = [{"apiGroup": rbac, "kind": "User", "name": name} for name in USERS]
    subjects += [{"apiGroup": rbac, "kind": "Group", "name": name} for name in GROUPS]
    ref = {"apiGroup": rbac, "kind": "ClusterRole", "name": "nothing"}
    out.append(_object(f"{rbac}/v1", "ClusterRoleBinding", "everybody", roleRef=ref, subjects=subjects))
    for number, text in enumerate(expressions):
        spec = {"effect": rng.choice(("Allow", "Deny")), "expression": text}
        out.append(_object("tierwall.io/v1alpha1", "ClusterAuthorizationPolicy", f"p-{number}", spec=spec))
    return out


def question(rng: Random) -> Object:
    namespace = rng.choice(NAMESPACES)
    labels = {key: rng.choice(VALUES) for key in LABELS if rng.random() < 0.7}
    metadata = {"name": rng.choice(NAMES), "namespace": namespace, "labels": labels}
    return {
        "user": rng.choice(USERS),
        "groups": rng.sample(GROUPS, rng.randint(0, 3)),
        "verb": "create",
        "version": "v1",
        "resource": "pods",
        "namespace": namespace,
        "name": metadata["name"],
        "object": {"metadata": metadata, "spec": {"owner": rng.choice((*EVERY, "fast"))}},
    }


@pytest.mark.parametrize("seed", seeds(60))
def test_expressions(seed: int) -> None:
    rng = Random(seed)
    writer = ExpressionWriter(rng)
    objects = world(rng, [writer.truth(2) for _ in range(rng.randint(1, 2))])
    before = snapshot_of(objects)
    redacted = redact(before)
    after = snapshot_of(list(redacted.values))
    for _ in range(6):
        asked = question(rng)
        renamed = rename_question(redacted, asked)
        expected = rename_outcome(redacted, outcome("api", before, asked))
        texts = [
            value["spec"]["expression"] for side in (objects, redacted.values) for value in side if "spec" in value
        ]
        assert outcome("api", after, renamed) == expected, (asked, renamed, texts, redacted.kept)
