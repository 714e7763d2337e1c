"""What the kernel cannot do as written: domain names, pods without an address, addresses that several pods have."""

from __future__ import annotations

from collections.abc import Iterator

from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.nftables.options import Wire
from tierwall.network.model.addresses import show
from tierwall.network.model.ends import End
from tierwall.network.model.matching import domains
from tierwall.network.model.model import Model
from tierwall.network.model.rules import Action, Direction

_CLOSED = {
    Action.ALLOW: "it opens nothing",
    Action.DENY: "it drops traffic to every address",
    Action.PASS: "only what both the rest of the tier and the tiers below allow passes",
}


def findings(model: Model, wire: Wire) -> Iterator[Diagnostic]:
    """Every such place."""
    for policy in model.policies:
        for direction in Direction:
            for rule in policy.rules(direction) or ():
                if names := domains(rule):
                    yield Diagnostic(
                        "TW605",
                        f"{rule} names domains ({', '.join(f'`{one}`' for one in names)}), which the kernel does not"
                        f" know: {_CLOSED[rule.action]}",
                        rule.resource.position(rule.path),
                        subject=rule.policy,
                    )
    first: dict[int, End] = {}
    for pod in sorted(model.pods, key=lambda one: (one.namespace, one.name)):
        if not pod.under_policy:
            continue
        if not wire.addresses(pod):
            yield Diagnostic("TW606", f"pod `{pod}` has no address, so nothing can be enforced on it yet")
        for address in pod.addresses:
            other = first.setdefault(address, pod)
            if other is not pod:
                words = f"pods `{other}` and `{pod}` have the same address {show(address)}; it is judged as `{other}`"
                yield Diagnostic("TW607", words)
