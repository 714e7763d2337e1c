"""What of the network policies is not understood and therefore fails closed, told where it is written."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.core.diagnostics import Diagnostic
from tierwall.network.model.model import Model


def closed(model: Model) -> Iterator[Diagnostic]:
    """One warning for every policy, or else for every rule of it, that fails closed."""
    for policy in model.policies:
        if policy.note:
            words = policy.note.removeprefix("fails closed: ")
            place = policy.resource.position(("spec",))
            yield Diagnostic("TW208", f"{policy.reference} fails closed: {words}", place, subject=policy.reference)
            continue
        for rule in (*(policy.egress or ()), *(policy.ingress or ())):
            if rule.note:
                words = rule.note.removeprefix("fails closed: ")
                place = rule.resource.position(rule.path)
                yield Diagnostic("TW208", f"{rule} fails closed: {words}", place, subject=rule.policy)
