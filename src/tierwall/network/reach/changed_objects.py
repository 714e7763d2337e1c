"""The objects that decide about connections and differ between two snapshots."""

from __future__ import annotations

from tierwall.core.reference import Reference
from tierwall.network.model.policies import KINDS as POLICY_KINDS
from tierwall.resources.snapshot import KindKey, Snapshot
from tierwall.resources.workloads import WORKLOADS

# Of a connection, only the objects of these kinds at its own ends count.
LOCAL_KINDS = frozenset((*POLICY_KINDS, *WORKLOADS, ("", "Namespace"), ("", "Pod")))
# A Node may have the address of any end, and a definition decides what is understood of a policy.
_RELEVANT = frozenset((*LOCAL_KINDS, ("", "Node"), ("apiextensions.k8s.io", "CustomResourceDefinition")))


def changed_objects(before: Snapshot, after: Snapshot) -> set[tuple[KindKey, Reference]]:
    """Return the objects that decide about connections and differ, by kind."""
    return {
        ((resource.group, resource.kind), resource.reference)
        for old, new in after.changes(before)
        if (resource := new if new is not None else old) is not None
        and (resource.group, resource.kind) in _RELEVANT
        and (old is None or new is None or not new.has_same_content(old))
    }
