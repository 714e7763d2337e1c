"""Finds the policies that the kernel refuses (docs/semantics.md#what-an-engine-refuses-is-closed).

Tables with some of the policies are tried where they do no harm: in a network namespace of their own, or with `nft -c`
if this process may not make one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager

from tierwall.core.diagnostics import InputError
from tierwall.core.reference import Reference
from tierwall.engines.nftables.kernel.apply import check, execute, remove
from tierwall.engines.nftables.kernel.namespaces import NetworkNamespace
from tierwall.engines.nftables.table.compile import compile_snapshot, without_others
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


def refused_policies(
    snapshot: Snapshot, options: TableOptions, known: Collection[Reference] = ()
) -> dict[Reference, str]:
    """Return policies that the kernel refuses, besides those known already, with its words; none if it takes them all.

    The table without any policy is tried first: what the kernel refuses even then is not the fault of a policy.
    """
    model = network_model_with_shadow(snapshot)
    words: dict[frozenset[Reference], str] = {}

    def is_good(policies: Sequence[TieredPolicy]) -> bool:
        script = table_script(compile_snapshot(without_others(snapshot, model, policies), options).table)
        try:
            if scratch is None:
                check(script)
            else:
                remove()
                execute(script)
        except InputError as error:
            if not is_refusal(error):
                raise
            words[frozenset(policy.reference for policy in policies)] = str(error)
            return False
        return True

    suspects = [policy for policy in model.policies if policy.reference not in known]
    with _scratch() as scratch:
        if not suspects or not is_good([]) or is_good(suspects):
            return {}
        return {
            policy.reference: words.get(frozenset((policy.reference,)), "it is too large together with the others")
            for policy in at_fault(suspects, is_good)
        }


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
