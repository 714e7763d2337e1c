"""ClusterAuthorizationPolicy and AuthorizationPolicy: effect, expression and where they apply (docs/api.md#a-policy).

A policy that cannot be read never disappears: an expression that does not parse fails for every request the policy is
about, and an unknown effect counts as a Deny that fails.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from tierwall.api.condition import Effect, Source, label_key_problem
from tierwall.api.expression import Expression, made
from tierwall.cel.ast import Expr
from tierwall.cel.errors import ParseError
from tierwall.core.reference import Reference
from tierwall.resources.once import per_snapshot
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

GROUP = "tierwall.io"
CLUSTER_KIND, NAMESPACED_KIND = "ClusterAuthorizationPolicy", "AuthorizationPolicy"
DEFAULT_AUTHORIZER = "policies"


class Policy(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One policy. `namespace` is empty for one that holds everywhere; `error` says why nothing was `made`."""

    resource: Resource
    id: str
    namespace: str
    authorizer: str
    effect: Effect
    description: str
    expression: str
    made: Expression | None
    error: str = ""

    @property
    def tree(self) -> Expr | None:
        """The expression as it was parsed."""
        return self.made.tree if self.made is not None else None

    @property
    def reference(self) -> Reference:
        """`Kind/namespace/name`."""
        return self.resource.reference

    @property
    def source(self) -> Source:
        """Where a condition of this policy comes from."""
        return Source(self.reference, self.resource)


@per_snapshot
def policies_of(snapshot: Snapshot) -> tuple[Policy, ...]:
    """Every policy of a snapshot, older first, then by name."""
    found = [
        _policy(resource, resource.namespace if kind == NAMESPACED_KIND else "")
        for kind in (CLUSTER_KIND, NAMESPACED_KIND)
        for resource in snapshot.of_kind(GROUP, kind)
    ]
    return tuple(sorted(found, key=lambda one: (one.resource.seniority, one.resource.kind)))


def _policy(resource: Resource, namespace: str) -> Policy:
    spec = resource.spec
    problems: list[str] = []
    effect = Effect.DENY
    word = spec.get("effect")
    if isinstance(word, str) and word in Effect.__members__.values():
        effect = Effect(word)
    else:
        problems.append(f"unknown effect `{word}`")
    expression = _text(spec.get("expression"))
    ready = None
    if not expression:
        problems.append("`spec.expression` is missing")
    else:
        try:
            ready = made(expression)
        except ParseError as why:
            problems.append(f"`spec.expression` does not parse: {why}")
    return Policy(
        resource,
        condition_id(namespace, resource.name),
        namespace,
        _text(spec.get("authorizer")) or DEFAULT_AUTHORIZER,
        effect,
        _text(spec.get("description")),
        expression,
        None if problems else ready,
        "; ".join(problems),
    )


def condition_id(namespace: str, name: str) -> str:
    """The id of a policy's conditions: `name` or `namespace/name`, cut where it would not be a label key."""
    plain = f"{namespace}/{name}" if namespace else name
    if label_key_problem(plain) is None and "/" not in name:
        return plain
    digest = hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    kept = "".join(letter for letter in name[:40] if letter.isascii() and (letter.isalnum() or letter in "-_."))
    kept = kept.strip("-_.")
    short = f"{kept}-{digest}" if kept else digest
    prefixed = f"{namespace}/{short}"
    return prefixed if namespace and label_key_problem(prefixed) is None else short


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
