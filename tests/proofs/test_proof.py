"""The frame of proofs: how claims, regions and assumptions are read, and what `tierwall test` says about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import tierwall
from tierwall import InputError, Proof
from tierwall.cli.main import root
from tierwall.core.diagnostics import Diagnostic
from tierwall.proofs.proof import Change, Claim
from tierwall.proofs.reader import ProofReader
from tierwall.proofs.value_set import ANYTHING, SetForm, ValueSet


def value_set(value: object) -> ValueSet | list[str]:
    """Read a set of values; the messages if there are problems."""
    problems: list[Diagnostic] = []
    read = ProofReader(problems).value_set(value, "user")
    return [problem.message_with_hint for problem in problems] or read


@pytest.mark.parametrize(
    ("written", "members", "others"),
    [
        ("alice", ["alice"], ["alic", ""]),
        (["a", "b"], ["a", "b"], ["c"]),
        ({"not": ["a"]}, ["b", ""], ["a"]),
        ({"not": []}, ["anything"], []),
        ({"prefix": "system:"}, ["system:", "system:node"], ["xsystem:"]),
        ({"suffix": ".io"}, ["a.io", ".io"], ["a.iox"]),
        ({"matches": "a|bc"}, ["a", "bc"], ["ab", "bcd", "a\n"]),
        (1, ["1"], ["2"]),
    ],
)
def test_a_value_of_a_region_is_a_set(written: object, members: list[str], others: list[str]) -> None:
    read = value_set(written)
    assert isinstance(read, ValueSet)
    assert [text for text in (*members, *others) if read.contains(text)] == members


def test_a_set_that_leaves_nothing_out_is_everything() -> None:
    assert ANYTHING.is_everything
    assert not ValueSet(SetForm.IN, ()).is_everything


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"not": "a"}, "expected a list as `not` in `user`, found the string `a`"),
        ({"prefx": "a"}, "found `{'prefx': 'a'}` (did you mean `prefix`?)"),
        ({"prefix": "a", "suffix": "b"}, "expected a value, a list, or a map with one of"),
        ({"matches": "("}, "`(` is not a regular expression of RE2: "),
        ([True], "expected strings in `user`, found `True`"),
        (None, "expected strings in `user`, found nothing"),
    ],
)
def test_a_set_that_is_malformed_says_what_was_expected(written: object, message: str) -> None:
    messages = value_set(written)
    assert isinstance(messages, list)
    assert [message in problem for problem in messages] == [True]


def problems(**value: Any) -> list[str]:
    """Return the messages of a malformed proof."""
    with pytest.raises(InputError) as raised:
        Proof.from_dict(value)
    return [diagnostic.message_with_hint for diagnostic in raised.value.diagnostics]


def test_a_proof_has_one_region_and_one_claim() -> None:
    assert problems(tool={}, api={}, never="Allow") == [
        "expected one of network, tool, api, noNew, noLoss in `prove`, found `tool`, `api`"
    ]
    assert problems(tool={}) == ["expected one of never, always with a verdict in `prove`, found none"]
    assert problems(tool={}, never="Allow", always="Deny") == [
        "expected one of never, always with a verdict in `prove`, found both"
    ]
    assert problems(tool={}, never="Alow") == [
        "expected one of Allow, Deny, Conditional, NoOpinion as `never`, found the string `Alow`"
        " (did you mean `Allow`?)"
    ]
    assert problems(noNew={"against": "old"}, never="Allow") == ["`noNew` is a claim itself: leave out `never`"]


def test_everything_wrong_with_a_proof_is_said_at_once() -> None:
    assert problems(
        tol={},
        noNew={"against": {"clster": True}, "planes": ["netwrk"]},
        assume={"podAddresses": ["10.0.0.0/33"], "existingOnly": "yes", "namespaces": [{}], "objets": ""},
    ) == [
        "expected `match` with a label selector in `assume.namespaces`",
        "expected an address or a CIDR as `podAddresses`, found the string `10.0.0.0/33`",
        "expected files or {cluster: true} as `against`, found `{'clster': True}` (did you mean `cluster`?)",
        "expected one of network, tool, api as `planes`, found the string `netwrk` (did you mean `network`?)",
        "expected true or false as `existingOnly`, found the string `yes`",
        "unknown key `objets` in `assume` (did you mean `objects`?)",
        "unknown key `tol` in `prove` (did you mean `tool`?)",
    ]


def test_a_proof_keeps_what_was_given() -> None:
    given = {"tool": {}, "never": "Allow", "assume": {"hostNetwork": True}}
    proof = Proof.from_dict(given)
    assert proof.to_dict() == given
    assert proof.claim == Claim("never", tierwall.Verdict.ALLOW)
    assert proof.assume.host_network
    change = Proof.from_dict({"noNew": {"against": "old"}}).claim
    assert change == Change("noNew", ("old",), False, ("network", "tool", "api"))


def test_a_change_needs_the_world_to_compare_with() -> None:
    with pytest.raises(InputError, match="expected the world to compare with"):
        tierwall.prove(tierwall.loads(""), Proof.from_dict({"noNew": {"against": "old"}}))


def policy_test(*cases: Any, **spec: Any) -> str:
    """Return the text of a policy test."""
    return yaml.safe_dump(
        {
            "apiVersion": "tierwall.io/v1alpha1",
            "kind": "PolicyTest",
            "metadata": {"name": "t"},
            "spec": {"cases": list(cases), **spec},
        },
        sort_keys=False,
    )


def test_problems_of_proofs_in_a_test_have_their_places(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(
        policy_test(
            {"name": "a", "prove": {"tool": {}, "nevr": "Allow"}},
            {"name": "b", "prove": {"tool": {}, "never": "Allow"}, "expect": {"proof": "Prooved"}},
            {"name": "c", "prove": {"tool": {}, "never": "Allow"}, "expect": {"decidedBy": "X/y"}},
            {"name": "d", "prove": {"noNew": {"against": "missing/"}}},
            {"name": "e", "prove": {"noNew": {"against": {"cluster": True}}}},
            defaults={"proofEffort": 0},
        )
    )
    result = CliRunner().invoke(root, ["test", str(path)])
    assert result.exit_code == 1
    lines = [line.removeprefix(str(path)) for line in result.stderr.splitlines()]
    assert lines == [
        ":9:7: error[TW703]: expected one of never, always with a verdict in `prove`, found none",
        ":10:13: error[TW703]: unknown key `nevr` in `prove` (did you mean `never`?)",
        ":16:14: error[TW703]: expected one of Proved, Refuted, Unknown as `proof`, found the string `Prooved` (did you"
        " mean `Proved`?)",
        ":22:18: error[TW703]: `decidedBy` goes with `proof: Refuted` alone",
        ":26:18: error[TW702]: no file or folder matches `missing/`",
        ":31:11: error[TW702]: `against: {cluster: true}` compares with a cluster, and this test names none (add"
        " `cluster: true` to `spec`, or --cluster)",
        ":33:18: error[TW703]: expected a number above 0 as `proofEffort`, found `0`",
    ]
