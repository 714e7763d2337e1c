"""What of the network policies is not understood and therefore fails closed, told where it is written."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.core.diagnostics import Diagnostic
from tierwall.network.model.model import Model


def closed(model: Model) -> Iterator[Diagnostic]:
    """One warning for every policy, or else for every rule of it, that fails closed."""
    for policy in model.policies:
        if policy.closed:
            words = f"{policy.reference} fails closed: {policy.closed}"
            yield Diagnostic("TW208", words, policy.resource.position(("spec",)), reference=policy.reference)
            continue
        for rule in policy.all_rules:
            if rule.closed:
                words = f"{rule} fails closed: {rule.closed}"
                yield Diagnostic("TW208", words, rule.resource.position(rule.path), reference=rule.policy)
