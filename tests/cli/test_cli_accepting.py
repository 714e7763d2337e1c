"""`check` with a baseline, with older manifests, and with comments and annotations that accept findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tierwall
from tierwall.analyze.baseline import BaselineSearch, BaselineSet
from tierwall.cli.main import root
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.reference import Reference

POLICY = """\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: {name}, namespace: shop}}
spec:
  podSelector:
    matchLabels: {{app: {name}}}
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
"""


def check(*args: str, text: str | None = None) -> Result:
    return CliRunner().invoke(root, ["check", *args], input=text)


def codes(*args: str, text: str | None = None) -> list[str]:
    result = check(*args, "-o", "json", text=text)
    return [finding["code"] for finding in json.loads(result.stdout)["diagnostics"]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "a.yaml").write_text(f"{POD}---\n{POLICY.format(name='lost')}")
    return tmp_path


def test_a_baseline_accepts_what_is_there_and_only_that(folder: Path) -> None:
    assert check("m").exit_code == 4
    written = check("m", "--write-baseline", "base.txt")
    assert (written.exit_code, written.stdout) == (0, "")
    assert written.stderr == "base.txt: 1 finding accepted\n0 errors in 2 objects of 1 file; 1 accepted\n"
    assert (folder / "base.txt").read_text().splitlines()[1:] == ["TW204 NetworkPolicy/shop/lost podSelector"]
    assert check("m", "--baseline", "base.txt").exit_code == 0
    (folder / "m" / "b.yaml").write_text(POLICY.format(name="newer"))
    result = check("m", "--baseline", "base.txt")
    assert result.exit_code == 4
    assert "newer" in result.stdout
    assert "lost" not in result.stdout


def test_a_baseline_survives_moved_lines_and_other_folders(folder: Path) -> None:
    check("m", "--write-baseline", "base.txt")
    before = (folder / "base.txt").read_bytes()
    text = (folder / "m" / "a.yaml").read_text()
    (folder / "m" / "a.yaml").unlink()
    (folder / "m" / "z").mkdir()
    (folder / "m" / "z" / "other.yaml").write_text(f"# moved\n\n{text}")
    assert check(str(folder / "m"), "--baseline", str(folder / "base.txt")).exit_code == 0
    check(str(folder), "--write-baseline", "base.txt")
    assert (folder / "base.txt").read_bytes() == before
    assert {path.name for path in folder.iterdir()} == {"m", "base.txt"}


def test_what_no_longer_occurs_is_reported_and_fails_nothing(folder: Path) -> None:
    check("m", "--write-baseline", "base.txt")
    (folder / "m" / "a.yaml").write_text(POD)
    result = check("m", "--baseline", "base.txt")
    assert result.exit_code == 0
    assert "base.txt:2:1: note[TW031]: `TW204 NetworkPolicy/shop/lost podSelector` no longer occurs" in result.stdout
    assert "base.txt: 0 findings accepted, 1 removed" in check("m", "--write-baseline", "base.txt").stderr


def test_a_baseline_is_read_whatever_its_line_ends_are(folder: Path) -> None:
    check("m", "--write-baseline", "base.txt")
    text = (folder / "base.txt").read_bytes()
    (folder / "base.txt").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    assert check("m", "--baseline", "base.txt").exit_code == 0


def test_a_baseline_that_cannot_be_written_or_read_is_an_error(folder: Path) -> None:
    result = check("m", "--write-baseline", "none/base.txt")
    assert result.exit_code == 1
    assert "none/base.txt: no such file or directory" in result.stderr
    assert check("m", "--baseline", "m").exit_code == 1
    assert check("m", "--baseline", "/dev/zero").exit_code == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("TW2040 NetworkPolicy/shop/lost podSelector", "(did you mean `TW204`?)"),
        ("TW204", "expected the object and the places in it after `TW204`"),
        ("apiVersion: v1", "expected a code such as TW204 at the start of the line, found `apiVersion:`"),
    ],
)
def test_a_broken_baseline_is_an_error_with_its_line_and_is_never_replaced(
    folder: Path, line: str, message: str
) -> None:
    (folder / "base.txt").write_text(f"# comment\n\n{line}\n")
    result = check("m", "--baseline", "base.txt")
    assert result.exit_code == 1
    assert "base.txt:3:1: error[TW030]" in result.stderr
    assert message in result.stderr
    assert check("m", "--write-baseline", "base.txt").exit_code == 1
    assert line in (folder / "base.txt").read_text()


def test_a_missing_baseline_says_how_to_make_one(folder: Path) -> None:
    result = check("m", "--baseline", "none.txt")
    assert result.exit_code == 1
    assert "make it with --write-baseline none.txt" in result.stderr


def test_what_cannot_be_read_is_never_accepted(folder: Path) -> None:
    (folder / "m" / "bad.yaml").write_text("a: [\n")
    result = check("m", "--write-baseline", "base.txt")
    assert result.exit_code == 1
    assert not (folder / "base.txt").exists()
    assert check("m", "--ignore", "TW", "--fail-on", "error").exit_code == 1


def test_an_entry_accepts_what_is_left_of_a_finding_but_nothing_new() -> None:
    text = "TW203 NetworkPolicy/a/b ingress[0],ingress[1] AdminNetworkPolicy/x AdminNetworkPolicy/y\n"

    def accepted(places: tuple[str, ...], related: tuple[str, ...]) -> bool:
        reference = Reference("NetworkPolicy", "a", "b")
        finding = Diagnostic("TW203", "m", reference=reference, places=places, related_objects=related)
        return BaselineSearch(BaselineSet.parse(text)).accepts(finding)

    x, y = "AdminNetworkPolicy/x", "AdminNetworkPolicy/y"
    assert accepted(("ingress[0]", "ingress[1]"), (x, y))
    assert accepted(("ingress[1]",), (y,))
    assert not accepted(("ingress[1]", "ingress[2]"), (y,))
    assert not accepted(("ingress[1]",), ("AdminNetworkPolicy/z",))


@pytest.mark.parametrize("name", ["a b", "é", "%20", "a,b", "-", "#", "\ud800", "x\ny", "", "ü%41"])
def test_a_baseline_is_read_as_it_was_written_whatever_names_are(name: str) -> None:
    finding = Diagnostic(
        "TW105",
        "m",
        reference=Reference("Kind", "n", name),
        places=(f"labels[{name}]",),
        related_objects=(f"K/{name}",),
    )
    written = BaselineSet.of([finding])
    assert [entry.identity for entry in BaselineSet.parse(str(written)).entries] == [
        entry.identity for entry in written.entries
    ]


def test_two_findings_at_one_place_need_two_lines(folder: Path) -> None:
    manifest = "apiVersion: v1\nkind: Namespace\nmetadata: {name: NO_, labels: {a: 'b '}}\n"
    (folder / "m" / "a.yaml").write_text(manifest)
    check("m", "--write-baseline", "base.txt")
    lines = (folder / "base.txt").read_text().splitlines(keepends=True)
    assert len(lines) > 2
    (folder / "base.txt").write_text("".join(lines[:-1]))
    assert len(codes("m", "--baseline", "base.txt")) == 1


def test_findings_of_older_manifests_are_left_out(folder: Path) -> None:
    (folder / "new").mkdir()
    text = (folder / "m" / "a.yaml").read_text()
    (folder / "new" / "a.yaml").write_text(f"{POLICY.format(name='newer')}---\n{text}")
    result = check("new", "--against", "m")
    assert result.exit_code == 4
    assert "newer" in result.stdout
    assert "lost" not in result.stdout
    assert "1 known before" in result.stderr
    assert check("m", "--against", "new").exit_code == 0


def test_a_repeated_key_is_the_same_finding_in_the_same_file_of_both_states(folder: Path) -> None:
    (folder / "new").mkdir()
    repeated = "apiVersion: v1\nkind: Namespace\nmetadata: {name: x, name: x}\n"
    (folder / "m" / "a.yaml").write_text(repeated)
    (folder / "new" / "a.yaml").write_text(f"# moved\n{repeated}")
    assert check("new", "--against", "m").exit_code == 0
    (folder / "new" / "b.yaml").write_text(repeated.replace("name: x", "name: z"))
    assert codes("new", "--against", "m") == ["TW004"]


def test_another_repeated_key_of_a_file_is_another_finding(folder: Path) -> None:
    (folder / "m" / "a.yaml").write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: x, name: x}\n")
    check("m", "--write-baseline", "base.txt")
    assert "TW004 file:m/a.yaml metadata.name\n" in (folder / "base.txt").read_text()
    (folder / "m" / "a.yaml").write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: x, labels: {a: b, a: b}}\n")
    assert codes("m", "--baseline", "base.txt") == ["TW031", "TW004"]


def test_a_count_of_findings_is_accepted_only_while_it_stays(folder: Path) -> None:
    once = "apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n---\n"
    (folder / "m" / "a.yaml").write_text(once * 140)
    check("m", "--write-baseline", "base.txt")
    assert check("m", "--baseline", "base.txt").exit_code == 0
    (folder / "m" / "a.yaml").write_text(once * 150)
    assert check("m", "--baseline", "base.txt").exit_code == 4


def test_very_many_entries_that_cannot_be_used_take_no_time(folder: Path) -> None:
    comments = "".join(f"# tierwall: ignore XX{number}\n" for number in range(100_000))
    (folder / "m" / "a.yaml").write_text(f"{comments}{POD}")
    annotations = {"tierwall.io/ignore": "XX\n" * 50_000}
    crowded = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x", "annotations": annotations}}
    (folder / "m" / "b.json").write_text(json.dumps(crowded))
    assert json.loads(check("m", "-o", "json").stdout)["warnings"] > 99_000


def test_older_manifests_that_cannot_be_read_end_the_command(folder: Path) -> None:
    assert check("m", "--against", "nowhere").exit_code == 1


ACCEPTED = {
    "on the line": "  podSelector: {matchLabels: {app: x}}  # tierwall: ignore TW204 why not\n",
    "above the line": "  # tierwall: ignore TW204 why not\n  # and more\n\n  podSelector: {matchLabels: {app: x}}\n",
    "behind the key": "  podSelector: # tierwall: ignore TW204 why not\n    matchLabels: {app: x}\n",
    "without blanks": "  podSelector: {matchLabels: {app: x}} #tierwall:ignore TW204 why\n",
    "after a code with a colon": "  podSelector: {matchLabels: {app: x}} # tierwall: ignore TW204: why\n",
}
NOT_ACCEPTED = {
    "another code": "  podSelector: {matchLabels: {app: x}} # tierwall: ignore TW205 why\n",
    "a prefix": "  podSelector: {matchLabels: {app: x}} # tierwall: ignore TW2 why\n",
    "no reason": "  podSelector: {matchLabels: {app: x}} # tierwall: ignore TW204  \n",
    "two lines above": "  # tierwall: ignore TW204 why\n  policyTypes: []\n  podSelector: {matchLabels: {app: x}}\n",
    "a sentence": "  podSelector: {matchLabels: {app: x}} # tierwall: ask before you change this\n",
}
HEAD = (
    f"{POD}---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: a, namespace: shop}}\nspec:\n"
)


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED)
@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_a_comment_accepts_the_finding_at_its_line(text: str, ending: str) -> None:
    result = check("-", "-o", "json", text=(HEAD + text).replace("\n", ending))
    document = json.loads(result.stdout)
    assert (result.exit_code, document["diagnostics"], document["accepted"]) == (0, [], 1)
    (accepted,) = document["acceptedDiagnostics"]
    assert accepted["acceptedBy"] == "comment"
    assert accepted["reason"].startswith("why")


IN_TEXT = {
    "in a string": 'metadata: {name: a, namespace: shop, annotations: {a: "# tierwall: ignore TW204 why"}}',
    "in a word": "metadata: {name: a, namespace: shop, annotations: {a: x#tierwall:ignore TW204 why}}",
    "in a block": "metadata:\n name: a\n namespace: shop\n annotations:\n  a: |\n   # tierwall: ignore TW204 why",
}


@pytest.mark.parametrize("metadata", IN_TEXT.values(), ids=IN_TEXT)
def test_text_that_looks_like_a_comment_accepts_nothing(metadata: str) -> None:
    policy = f"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n{metadata}\n"
    text = f"{POD}---\n{policy}spec: {{podSelector: {{matchLabels: {{app: x}}}}}}\n"
    assert codes("-", text=text) == ["TW204"]


@pytest.mark.parametrize("text", NOT_ACCEPTED.values(), ids=NOT_ACCEPTED)
def test_other_comments_and_other_text_accept_nothing(text: str) -> None:
    assert "TW204" in codes("-", text=HEAD + text)


def test_an_entry_without_reason_or_without_effect_is_a_finding() -> None:
    text = HEAD + "  podSelector: {matchLabels: {app: x}} # tierwall: ignore TW204\n"
    result = check("-", text=text)
    assert "warning[TW032]: expected a reason after TW204 in the comment" in result.stdout
    text = HEAD + "  podSelector: {} # tierwall: ignore TW204 why\n"
    result = check("-", text=text)
    assert result.exit_code == 0
    assert "note[TW033]: the comment accepts nothing: there is no TW204 on its line" in result.stdout
    assert check("-", "--fail-on", "note", text=text).exit_code == 4
    result = check("-", text=HEAD + "  podSelector: {} # tierwall: ignroe TW204 why\n")
    assert "TW032" in result.stdout
    assert "did you mean `ignore`?" in result.stdout
    result = check("-", text=HEAD + "  podSelector: {} # tierwall: ignore TW2044 why\n")
    assert "did you mean `TW204`?" in result.stdout


def test_a_comment_beside_a_separator_is_for_the_line_below() -> None:
    twice = f"{POD}---\n{POD}"
    assert codes("-", text=twice) == ["TW007"]
    assert codes("-", text=twice.replace("---", "--- # tierwall: ignore TW007 an overlay")) == []
    assert codes("-", text=f"--- # tierwall: ignore TW007 why\n{twice}") == ["TW033", "TW007"]


def test_an_annotation_accepts_the_findings_of_its_object_also_in_json() -> None:
    def policy(name: str, value: str) -> dict[str, object]:
        return {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": "shop", "annotations": {"tierwall.io/ignore": value}},
            "spec": {
                "podSelector": {},
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "no"}}}]}],
            },
        }

    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop"}}
    both = "TW205 it comes later\n\nTW105 that too\n"
    items = [policy("a", both), {**pod, "metadata": {"name": "NO_", "namespace": "shop"}}]
    world = tierwall.loads(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    reviewed = world.review()
    assert [(entry.finding.code, entry.by, entry.reason) for entry in reviewed.accepted] == [
        ("TW205", "annotation", "it comes later")
    ]
    # The other entry is about this object alone.
    unused, _ = sorted(reviewed.findings, key=lambda finding: finding.code)
    assert unused.code == "TW033"
    assert unused.message == "the annotation accepts nothing: there is no TW105 at NetworkPolicy/shop/a"
    items = [policy("a", "TW205"), pod]
    world = tierwall.loads(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert sorted(finding.code for finding in world.check()) == ["TW032", "TW205"]


def test_accepted_errors_are_counted_and_suppressed_in_sarif(folder: Path) -> None:
    text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: NO_}  # tierwall: ignore TW105 a test of admission\n"
    result = check("-", text=text)
    assert result.exit_code == 0
    assert "1 accepted (1 error)" in result.stderr
    (entry,) = json.loads(check("-", "-o", "sarif", text=text).stdout)["runs"][0]["results"]
    assert entry["suppressions"] == [{"kind": "inSource", "justification": "a test of admission"}]
    assert "baselineState" not in entry
    check("m", "--write-baseline", "base.txt")
    (folder / "m" / "b.yaml").write_text(POLICY.format(name="newer"))
    results = json.loads(check("m", "--baseline", "base.txt", "-o", "sarif").stdout)["runs"][0]["results"]
    assert [(entry["baselineState"], bool(entry["suppressions"])) for entry in results] == [
        ("new", False), ("unchanged", True),
    ]  # fmt: skip


def test_codes_are_selected_and_ignored_by_prefix_and_must_exist(folder: Path) -> None:
    assert codes("m", "--select", "TW2") == ["TW204"]
    assert codes("m", "--select", "TW1") == []
    assert codes("m", "--ignore", "TW204") == []
    for option in ("--select", "--ignore"):
        result = check("m", option, "TW2044")
        assert result.exit_code == 2
        assert "did you mean `TW204`?" in result.stderr
        assert check("m", option, "").exit_code == 2


@pytest.mark.parametrize(("severity", "code"), [("error", 0), ("warning", 4), ("note", 4)])
def test_what_fails_is_chosen(folder: Path, severity: str, code: int) -> None:
    assert check("m", "--fail-on", severity).exit_code == code
    failures = check("m", "--fail-on", severity, "-o", "junit").stdout.count("<failure")
    assert bool(failures) is bool(code)


@pytest.mark.parametrize("option", ["-n", "--namespace"])
def test_the_old_option_names_the_new(folder: Path, option: str) -> None:
    result = check("m", option, "shop")
    assert result.exit_code == 2
    assert "--for-namespace" in result.stderr
    assert f"{option}, --namespace" not in check("--help").stdout


def test_python_has_the_same_power(folder: Path) -> None:
    world = tierwall.load("m")
    text = world.baseline()
    check("m", "--write-baseline", "base.txt")
    assert text == (folder / "base.txt").read_text()
    assert [finding.code for finding in world.check()] == ["TW204"]
    assert world.check(baseline=text) == []
    assert world.check(against=world) == []
    with pytest.raises(tierwall.InputError):
        world.check(baseline="nonsense")
