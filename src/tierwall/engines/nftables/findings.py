"""What the kernel cannot do as written: domain names, pods without an address, addresses that several pods have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from tierwall.core.diagnostics import Diagnostic
from tierwall.engines.nftables.options import Wire
from tierwall.network.model.addresses import show
from tierwall.network.model.ends import End
from tierwall.network.model.matching import domains
from tierwall.network.model.model import Model
from tierwall.network.model.rules import Action, Direction

_SHOWN = 5


def findings(model: Model, wire: Wire) -> Iterator[Diagnostic]:
    """Every such place."""
    for policy in model.policies:
        for direction in Direction:
            for rule in policy.rules(direction) or ():
                if names := domains(rule):
                    yield Diagnostic(
                        "TW605",
                        f"{rule} names domains ({', '.join(f'`{one}`' for one in names)}), which the kernel does not"
                        f" know: {_closed(rule.action)}",
                        rule.resource.position(rule.path),
                        reference=rule.policy,
                    )
    pods = sorted((one for one in model.pods if one.under_policy), key=lambda one: (one.namespace, one.name))
    bare = [str(pod) for pod in pods if not wire.addresses(pod)]
    if bare:
        shown = ", ".join(f"`{name}`" for name in bare[:_SHOWN]) + (", …" if len(bare) > _SHOWN else "")
        words = "1 pod has" if len(bare) == 1 else f"{len(bare)} pods have"
        yield Diagnostic("TW606", f"{words} no address, so nothing can be enforced there yet: {shown}")
    first: dict[int, End] = {}
    for pod in pods:
        for address in pod.addresses:
            other = first.setdefault(address, pod)
            if other is not pod:
                words = f"pods `{other}` and `{pod}` have the same address {show(address)}; it is judged as `{other}`"
                yield Diagnostic("TW607", words)


def _closed(action: Action) -> str:
    """What becomes of a rule by domain name."""
    match action:
        case Action.ALLOW:
            return "it opens nothing"
        case Action.DENY:
            return "it drops traffic to every address"
        case Action.PASS:
            return "only what both the rest of the tier and the tiers below allow passes"
        case _:
            assert_never(action)
