"""Finds the policies that the kernel refuses (docs/semantics.md#what-an-engine-refuses-is-closed).

Tables with some of the policies are tried where they do no harm: in a network namespace of their own, or with `nft -c`
if this process may not make one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from tierwall.core.diagnostics import InputError
from tierwall.core.reference import Reference
from tierwall.engines.nftables.kernel.apply import check, execute, remove
from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace
from tierwall.engines.nftables.table.compile import CompiledTable, compile_snapshot, without_others
from tierwall.engines.nftables.table.names import comment
from tierwall.engines.nftables.table.options import TableOptions
from tierwall.engines.nftables.table.refusal import at_fault
from tierwall.engines.nftables.table.table import table_script
from tierwall.network.model.model import network_model_with_shadow
from tierwall.network.model.rules import TieredPolicy
from tierwall.resources.snapshot import Snapshot

REFUSED = "TW604"


def is_refusal(error: InputError) -> bool:
    """Whether an error is about what a table says, and not about the machine."""
    return all(diagnostic.code == REFUSED for diagnostic in error.diagnostics)


def refused_policies(snapshot: Snapshot, options: TableOptions, compiled: CompiledTable) -> dict[Reference, str]:
    """Return policies for which the kernel refuses a table, with its words; none if no policy explains the refusal.

    The policies on the line that the kernel complains about are tried first, each alone. The table without any policy
    is tried before: what the kernel refuses even then is not the fault of a policy.
    """
    model = network_model_with_shadow(snapshot)
    suspects = [policy for policy in model.policies if policy.reference not in compiled.refused]
    words: dict[frozenset[Reference], str] = {}

    def is_good(policies: Sequence[TieredPolicy]) -> bool:
        script = table_script(compile_snapshot(without_others(snapshot, model, policies), options).table)
        refusal = _refusal(script, scratch)
        words[frozenset(policy.reference for policy in policies)] = refusal
        return not refusal

    with _scratch() as scratch:
        whole = table_script(compiled.table)
        refusal = _refusal(whole, scratch)
        if not suspects or not refusal or not is_good([]):
            return {}
        line = _line(whole, refusal)
        named = [policy for policy in suspects if comment(str(policy.reference)) in line]
        culprits = [policy for policy in named if not is_good([policy])] or at_fault(suspects, is_good)
    return {
        policy.reference: words[frozenset((policy.reference,))] or "it is too large together with the others"
        for policy in culprits
    }


def _refusal(script: str, scratch: NetworkNamespace | None) -> str:
    """Try a script where it does no harm; return why it is refused, or an empty string."""
    try:
        if scratch is None:
            check(script)
        else:
            remove()
            execute(script)
    except InputError as error:
        if not is_refusal(error):
            raise
        return str(error)
    return ""


def _line(script: str, refusal: str) -> str:
    """Return the line of a script that a refusal is about; empty if it names none."""
    number = re.search(r"/dev/stdin:(\d+):", refusal)
    lines = script.splitlines()
    return lines[int(number[1]) - 1] if number and 0 < int(number[1]) <= len(lines) else ""


@contextmanager
def _scratch() -> Iterator[NetworkNamespace | None]:
    """Enter a network namespace of its own, if this process may make one."""
    try:
        namespace = NetworkNamespace()
    except InputError:
        yield None
        return
    with closing(namespace), namespace.entered():
        yield namespace
