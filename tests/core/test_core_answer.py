"""Who decided, in words: a rule's own name is shown beside its place and never passes for anything else."""

from __future__ import annotations

import pytest

from tierwall.core.answer import Decider
from tierwall.core.reference import Reference

POLICY = Reference("AdminNetworkPolicy", "", "guard")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("deny-finance", " (deny-finance)"),
        ("Finanzämter sperren", " (Finanzämter sperren)"),
        (None, ""),
        ("", ""),
        ("x)\nok   t: another case", r" (x)\nok   t: another case)"),
        ("\x1b[2J\r", r" (\x1b[2J\r)"),
        ("\u202egnp", r" (\u202egnp)"),
        ("\ud800", r" (\ud800)"),
    ],
)
def test_the_name_of_a_rule_stays_on_its_line(name: str | None, shown: str) -> None:
    assert str(Decider(POLICY, "egress[0]", name)) == f"AdminNetworkPolicy/guard egress[0]{shown}"
