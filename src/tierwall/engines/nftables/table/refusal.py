"""Policies that the kernel cannot enforce: over a limit, not to be compiled, or refused by the kernel.

docs/semantics.md#what-an-engine-refuses-is-closed: such a policy fails closed for its subject, a diagnostic says why,
and all other policies are enforced. The search for the policy at fault halves the policies again and again, so with one
fault it costs about as much as one more compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tierwall.core.diagnostics import Diagnostic
from tierwall.core.reference import Reference
from tierwall.network.model.model import NetworkModel
from tierwall.network.model.rules import AddressPeer, DomainPeer, NetworkRule, TieredPolicy

# What one policy may have. A policy at these limits takes the kernel about two seconds.
MAX_RULES, MAX_PARTS = 2_000, 20_000


def over_limits(model: NetworkModel) -> dict[Reference, str]:
    """Return the policies that are too large for the kernel, each with the limit that it exceeds."""
    out = {}
    for policy in model.policies:
        rules = len(policy.all_rules)
        if rules > MAX_RULES:
            out[policy.reference] = f"it has {rules:,} rules, and at most {MAX_RULES:,} are enforced"
        elif (parts := size(policy)) > MAX_PARTS:
            out[policy.reference] = f"its rules have {parts:,} peers and ports, and at most {MAX_PARTS:,} are enforced"
    return out


def size(policy: TieredPolicy) -> int:
    """Return the number of peers, blocks, exceptions and ports of a policy's rules."""
    return sum(map(_rule_size, policy.all_rules))


def _rule_size(rule: NetworkRule) -> int:
    parts = len(rule.ports or ())
    for peer in rule.peers or ():
        if isinstance(peer, AddressPeer):
            parts += sum(1 + len(block.excepts) for block in peer.blocks)
        else:
            parts += len(peer.names) if isinstance(peer, DomainPeer) else 1
    return parts


def at_fault(policies: Iterable[TieredPolicy], is_good: Callable[[Sequence[TieredPolicy]], bool]) -> list[TieredPolicy]:
    """Return policies that are at fault, given that all of these together are not good.

    If each of them is good alone and only all together are not, the largest is at fault.
    """
    return _at_fault(sorted(policies, key=size), is_good)


def _at_fault(
    policies: Sequence[TieredPolicy], is_good: Callable[[Sequence[TieredPolicy]], bool]
) -> list[TieredPolicy]:
    middle = len(policies) // 2
    first, second = policies[:middle], policies[middle:]
    if not first:
        is_good(second)  # the caller wants to know why
        return list(second)
    out: list[TieredPolicy] = []
    if not is_good(first):
        out = _at_fault(first, is_good)
        if is_good(second):
            return out
    # If the first half is good, the fault is in the second, which ends with the largest policy.
    return out + _at_fault(second, is_good)


def refusal_findings(model: NetworkModel, refused: Mapping[Reference, str], code: str) -> Iterator[Diagnostic]:
    """Report the policies that are refused."""
    for policy in model.policies:
        if policy.reference in refused:
            message = f"{policy} fails closed, because the kernel cannot enforce it: {refused[policy.reference]}"
            yield policy.resource.diagnostic(code, message, ("spec",))


def unenforced_policies(model: NetworkModel, findings: Iterable[Diagnostic]) -> dict[Reference, str]:
    """Return the policies that a table does not enforce as they are written, each with the reason.

    They fail closed as a whole or in part, or have rules that the kernel does not know how to match.
    """
    reasons = {finding.reference: finding.message for finding in findings if finding.reference is not None}
    for policy in model.policies:
        closed = policy.closed or next((rule.closed for rule in policy.all_rules if rule.closed), "")
        if closed:
            reasons.setdefault(policy.reference, f"it fails closed: {closed}")
    return reasons
