"""Test deciders in output: the name of a rule is beside its place and cannot fake anything else."""

from __future__ import annotations

import pytest

from tierwall.core.answer import Answer, Decider
from tierwall.core.expectation import mismatches
from tierwall.core.reference import Reference
from tierwall.core.verdict import Verdict

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


def test_a_decider_may_be_expected_as_a_failure_shows_it() -> None:
    decider = Decider(POLICY, "egress[0]", "deny finance")
    answer = Answer(plane="network", verdict=Verdict.DENY, sentence="", decided_by=(decider,), steps=())
    (mismatch,) = mismatches({"decidedBy": "Default"}, answer, {})
    shown = mismatch.removeprefix("decidedBy: expected Default, got ")
    assert shown == "AdminNetworkPolicy/guard egress[0] deny finance"
    assert mismatches({"decidedBy": shown}, answer, {}) == []
    assert mismatches({"decidedBy": f"{shown} too"}, answer, {}) != []
