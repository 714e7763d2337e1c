"""From which namespaces an owner lets others attach: `from: Same | All | Selector | None` (Gateway API)."""

from __future__ import annotations

from collections.abc import Mapping

from tierwall.core.labels import Selector, SelectorError
from tierwall.resources.snapshot import Snapshot

NAME_LABEL = "kubernetes.io/metadata.name"


def namespace_labels(snapshot: Snapshot, namespace: str) -> Mapping[str, str]:
    """The labels of a namespace; one that no object declares exists with the label of its name alone."""
    declared = snapshot.get("", "Namespace", "", namespace)
    return {**(declared.labels if declared is not None else {}), NAME_LABEL: namespace}


def namespace_allowed(snapshot: Snapshot, namespaces: object, default: str, own: str, other: str) -> bool:
    """Whether `namespaces` (`{from, selector}`) of an owner in namespace `own` lets `other` in."""
    rule = namespaces if isinstance(namespaces, dict) else {}
    source = rule.get("from", default)
    if source == "Selector":
        try:
            selector = Selector.parse(rule.get("selector"))
        except SelectorError:
            return False
        # Without a selector there is nothing that could let a namespace in.
        return rule.get("selector") is not None and selector.matches(namespace_labels(snapshot, other))
    return source == "All" or (source == "Same" and own == other)
