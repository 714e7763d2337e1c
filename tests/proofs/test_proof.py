"""The frame of proofs: how claims, regions and assumptions are read, and what `tierwall test` says about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from click.testing import CliRunner
from msgspec.structs import replace

import tierwall
from tierwall import InputError, Proof
from tierwall.cli.main import root
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.protocols import EngineReply
from tierwall.policytest.run import ModelEngine, confirmed_by_engine
from tierwall.policytest.suite import suites
from tierwall.proofs.proof import Change, Claim
from tierwall.proofs.proving import prove
from tierwall.proofs.reader import ProofReader
from tierwall.proofs.value_set import ANYTHING, SetForm, ValueSet

TOOL = {"gateway": "prod/gw", "backend": "prod/payments"}


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
        ({"prefx": "a"}, 'found `{"prefx": "a"}` (did you mean `prefix`?)'),
        ({"prefix": "a", "suffix": "b"}, "expected a value, a list, or a map with one of"),
        ({"matches": "("}, "`(` is not a regular expression of RE2: "),
        ([True], "expected strings in `user`, found `true`"),
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
    assert problems(tool=TOOL, api={}, never="Allow") == [
        "expected one of network, tool, api, noNew, noLoss in `prove`, found `tool`, `api`"
    ]
    assert problems(tool=TOOL) == ["expected one of never, always with a verdict in `prove`, found none"]
    assert problems(tool=TOOL, never="Allow", always="Deny") == [
        "expected one of never, always with a verdict in `prove`, found both"
    ]
    assert problems(tool=TOOL, never="Alow") == [
        "expected one of Allow, Deny as `never`, found the string `Alow` (did you mean `Allow`?)"
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
        'expected files or {cluster: true} as `against`, found `{"clster": true}` (did you mean `cluster`?)',
        "expected one of network, tool, api as `planes`, found the string `netwrk` (did you mean `network`?)",
        "expected true or false as `existingOnly`, found the string `yes`",
        "unknown key `objets` in `assume` (did you mean `objects`?)",
        "unknown key `tol` in `prove` (did you mean `tool`?)",
    ]


def test_a_proof_keeps_what_was_given() -> None:
    given = {"api": {}, "never": "Allow", "assume": {"objects": "has(object.spec)"}}
    proof = Proof.from_dict(given)
    assert proof.to_dict() == given
    assert proof.claim == Claim("never", tierwall.Verdict.ALLOW)
    assert proof.assume.objects == "has(object.spec)"
    change = Proof.from_dict({"noNew": {"against": "old"}}).claim
    assert change == Change("noNew", ("old",), False, ("network", "tool", "api"))


def test_a_change_needs_the_world_to_compare_with() -> None:
    with pytest.raises(InputError, match="expected the world to compare with"):
        tierwall.prove(tierwall.loads(""), Proof.from_dict({"noNew": {"against": "old"}}))


POLICY = """\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: locked, namespace: shop}
spec: {podSelector: {}, policyTypes: [Ingress]%s}
"""


@pytest.fixture
def sides(tmp_path: Path) -> tuple[str, str]:
    """Two folders: a locked namespace, and one that takes connections on a port."""
    for name, more in (("closed", ""), ("open", ", ingress: [{ports: [{port: 443}]}]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.yaml").write_text(POLICY % more)
    return str(tmp_path / "closed"), str(tmp_path / "open")


def proved_diff(*arguments: str) -> tuple[int, str]:
    """Run `diff --prove`; return its exit code and first line."""
    result = CliRunner().invoke(root, ["diff", "--prove", *arguments])
    return result.exit_code, result.output.splitlines()[0]


def test_diff_proves_that_a_change_opens_nothing(sides: tuple[str, str]) -> None:
    closed, opened = sides
    code, line = proved_diff(opened, closed, "--plane", "network")
    assert (code, line.partition(":")[0]) == (0, "Proved")
    code, line = proved_diff(closed, opened, "--plane", "network")
    assert (code, "on TCP port 443" in line) == (4, True)
    assert proved_diff(closed, opened, "--plane", "network", "-o", "md") == (4, "**Refuted**")
    assert CliRunner().invoke(root, ["diff", "--prove", closed, opened, "-o", "svg"]).exit_code == 2
    assert CliRunner().invoke(root, ["diff", "--prove", closed, opened, "--plane", "gateway"]).exit_code == 2


def test_a_counterexample_can_be_pasted_and_asked_again(sides: tuple[str, str], tmp_path: Path) -> None:
    closed, opened = sides
    result = CliRunner().invoke(root, ["diff", "--prove", closed, opened, "--plane", "network"])
    manifest, _, rest = result.output.partition("\n\n")
    pasted = tmp_path / "pasted.yaml"
    pasted.write_text(manifest.partition("\n")[2])
    question = yaml.safe_load("\n".join(line[2:] for line in manifest.splitlines() if line.startswith("# ")))
    answers = [
        tierwall.load(side, pasted).ask(tierwall.NetworkQuestion.from_dict(question["network"])) for side in sides
    ]
    assert [str(answer.verdict) for answer in answers] == ["Deny", "Allow"]
    assert answers[1].sentence in rest


def test_a_refutation_that_is_not_confirmed_is_unknown_and_a_failure_of_the_tool(
    sides: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tierwall.network.question import NetworkQuestion
    from tierwall.proofs.network import plane
    from tierwall.proofs.result import Candidate

    wrong = NetworkQuestion(source={"ip": "203.0.113.1"}, to={"ip": "203.0.113.2"}, port=80)
    monkeypatch.setattr(plane, "prove", lambda *terms: Candidate((), wrong))
    path = tmp_path / "t.yaml"
    path.write_text(policy_test({"name": "a", "prove": {"network": {}, "never": "Deny"}}, resources=[sides[0]]))
    result = CliRunner().invoke(root, ["test", str(path)])
    assert result.exit_code == 1
    assert "Unknown: a counterexample was found that the decision does not confirm" in result.output
    assert "please report it" in result.output


class AnsweringEngine(ModelEngine):
    """An engine that answers every network question by a verdict, or cannot ask it."""

    planes: ClassVar[tuple[str, ...]] = ("network",)

    def __init__(self, verdict: tierwall.Verdict | None) -> None:
        self.verdict = verdict

    def ask(self, snapshot: Any, questions: Any) -> Iterator[EngineReply]:
        """Answer as the model does, but with this verdict."""
        for reply in super().ask(snapshot, questions):
            assert reply.answer is not None
            if self.verdict is None:
                yield EngineReply(skipped="no SCTP")
            else:
                yield EngineReply(replace(reply.answer, verdict=self.verdict))


@pytest.mark.parametrize(
    ("verdict", "proof", "skipped"),
    [(tierwall.Verdict.ALLOW, "Refuted", ""), (tierwall.Verdict.DENY, "Unknown", ""), (None, "Refuted", "no SCTP")],
)
def test_a_real_engine_confirms_counterexamples_too(
    sides: tuple[str, str], tmp_path: Path, verdict: tierwall.Verdict | None, proof: str, skipped: str
) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(policy_test({"name": "a", "prove": {"network": {}, "never": "Allow"}}, resources=[sides[1]]))
    (suite,) = suites([str(path)])
    given = suite.cases[0].proof
    assert given is not None
    asked = prove(suite.snapshot, given)
    result, why = confirmed_by_engine(suite, given, asked, AnsweringEngine(verdict))
    assert (str(result.proof), why) == (proof, skipped)
    assert result.is_defect is (proof == "Unknown")


def test_what_is_expected_of_a_proof_is_compared(sides: tuple[str, str], tmp_path: Path) -> None:
    shop = {"to": {"namespaces": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}}
    claim, refuted = {"network": shop, "always": "Allow"}, {"proof": "Refuted"}
    odd = {"where": "quantity(object.x).sign() > 0"}
    path = tmp_path / "t.yaml"
    path.write_text(
        policy_test(
            {"name": "proved", "prove": {"network": shop, "never": "Allow"}},
            {
                "name": "refuted",
                "prove": claim,
                "expect": {"proof": "Refuted", "decidedBy": "NetworkPolicy/shop/locked"},
            },
            {"name": "other", "prove": claim, "expect": refuted | {"decidedBy": "NetworkPolicy/shop/x"}},
            {"name": "unknown", "prove": {"api": odd, "always": "Allow"}, "expect": {"proof": "Unknown"}},
            {"name": "opens nothing", "prove": {"noNew": {"against": sides[0], "planes": ["network"]}}},
            {"name": "opens", "prove": {"noNew": {"against": sides[1], "planes": ["network"]}}},
            {"name": "closes", "prove": {"noLoss": {"against": sides[1], "planes": ["network"]}}},
            {"name": "nobody", "prove": {"network": {"from": {"pod": "shop/x"}}, "never": "Allow"}},
            resources=[sides[0]],
        )
    )
    report = tierwall.run_tests(path)
    assert [case.ok for case in report.cases] == [True, True, False, True, True, True, False, False]
    assert report.cases[2].mismatches == (
        "decidedBy: expected NetworkPolicy/shop/x, got NetworkPolicy/shop/locked spec",
    )
    assert "there is no pod" in report.cases[7].error
    junit = CliRunner().invoke(root, ["test", str(path), "-o", "junit"])
    assert junit.exit_code == 4
    assert "proof: expected Proved, got Refuted" in junit.stdout


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
            {"name": "a", "prove": {"api": {}, "nevr": "Allow"}},
            {"name": "b", "prove": {"api": {}, "never": "Allow"}, "expect": {"proof": "Prooved"}},
            {"name": "c", "prove": {"api": {}, "never": "Allow"}, "expect": {"decidedBy": "X/y"}},
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


@pytest.mark.parametrize("spec", [{}, {"objects": []}, {"resources": ["t.yaml"]}, {"resources": ["manifests/"]}])
def test_a_proof_about_no_objects_is_warned_of(tmp_path: Path, spec: dict[str, Any]) -> None:
    path, objects = tmp_path / "t.yaml", tmp_path / "manifests"
    objects.mkdir()
    proof = {"name": "a", "prove": {"network": {}, "never": "Deny"}}
    path.write_text(policy_test(proof, **spec))
    result = CliRunner().invoke(root, ["test", str(path)])
    assert result.exit_code == 0, result.stderr
    assert f"{path}:7:5: warning[TW706]: no objects are judged, so the proof `a` is about the defaults" in result.stderr
    # With an object of any kind, the test means what it says.
    given = tmp_path / "given.yaml"
    given.write_text("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}")
    assert "TW706" not in CliRunner().invoke(root, ["test", str(path), "-f", str(given)]).stderr
    path.write_text(policy_test(proof, resources=["given.yaml"]))
    assert "TW706" not in CliRunner().invoke(root, ["test", str(path)]).stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"api": {"user": []}}, "expected a value or a list of values as `user`, found an empty list"),
        ({"network": {"port": []}}, "expected a port, a range or a list of them as `port`, found an empty list"),
        ({"network": {"protocol": {"prefix": "X"}}}, "none of TCP, UDP, SCTP is in `protocol`"),
        ({"api": {"where": "obejct.x == 1"}}, "`where` cannot be used: undeclared variable `obejct`"),
        ({"api": {"where": "1 + 1"}}, "expected an expression of type bool as `where`, found int"),
        (
            {"tool": {"gateway": "a/g", "backend": "a/b", "where": "request.mcp.tool == 'x'"}},
            "`where` cannot be used: no field `tool` in request.mcp",
        ),
    ],
)
def test_a_region_that_can_only_be_empty_is_an_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Proof.from_dict({**given, "never": "Allow"})
    assert [problem.message for problem in caught.value.diagnostics] == [message]


@pytest.mark.parametrize(
    ("given", "is_vacuous"),
    [
        ({"network": {"from": {"namespaces": {"matchLabels": {"not a label": "x"}}}}, "never": "Deny"}, True),
        ({"network": {"port": {"not": []}}, "never": "Deny"}, False),
        ({"api": {"where": "object.a == 1 && object.a == 2"}, "never": "Allow"}, True),
        ({"api": {"where": "object.a == 1"}, "never": "Allow"}, False),
    ],
)
def test_a_proof_about_nothing_says_so(given: dict[str, Any], is_vacuous: bool) -> None:
    result = tierwall.prove(tierwall.load(objects=[]), Proof.from_dict(given))
    assert result.proof == "Proved"
    assert ("nothing that may come is in the region" in result.sentence) is is_vacuous
