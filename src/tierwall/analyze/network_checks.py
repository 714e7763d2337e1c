"""All checks of network policies together: what they select, what they leave out, and what rules do to each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from tierwall.analyze.network import MAX_STAND_INS, RuleWalk
from tierwall.analyze.network_selection import SelectionCheck, without_tenancy_label
from tierwall.analyze.selected import SelectedClasses
from tierwall.core.diagnostics import Diagnostic
from tierwall.network.model.model import network_model
from tierwall.network.model.policies import shadow_notes
from tierwall.network.model.rules import TierName
from tierwall.network.reach.exposure import with_stand_ins
from tierwall.network.reach.own_classes import own_rows, provide_larger_classes
from tierwall.resources.snapshot import Snapshot
from tierwall.resources.validity import is_understood


def network_findings(snapshot: Snapshot, alone: str | None = None) -> Iterator[Diagnostic]:
    """Yield all findings of the network plane. With `alone`, the snapshot has no objects of other namespaces."""
    yield from shadow_notes(snapshot)
    model = network_model(snapshot)
    if not model.policies:
        return
    # Refused policies have no effect, and nothing is certain about policies with unknown parts.
    refused = {policy.reference for policy in model.policies if not is_understood(snapshot, policy.resource)}
    declared = [] if alone is not None else [namespace.name for namespace in snapshot.of_kind("", "Namespace")]
    understood = [policy for policy in model.policies if policy.reference not in refused]
    cluster = SelectedClasses(model, own_rows(snapshot)[0].membership)
    selection = SelectionCheck(cluster, understood, declared, alone)
    findings: Iterable[Diagnostic] = chain(selection.findings(), without_tenancy_label(model))
    if any(policy.tier is not TierName.NAMESPACE for policy in model.policies):
        # NetworkPolicies alone neither override nor shadow each other.
        hypothetical = with_stand_ins(snapshot, True, MAX_STAND_INS, leading=model.tied_policies)
        provide_larger_classes(snapshot, hypothetical.snapshot)
        walk = RuleWalk(hypothetical)
        findings = chain(findings, walk.findings())
    yield from (finding for finding in findings if finding.reference not in refused)
