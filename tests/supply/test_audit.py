"""Locked versions are compared with OSV records as the OSV schema says; what cannot be read is never taken for safe."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from supply.__main__ import main
from supply.audit import find_vulnerable
from supply.inventory import Component, read_inventory
from supply.osv import Effect, ListError, Record, effect, read_records, repository_effect
from tests import ROOT

ENVOY = "https://github.com/envoyproxy/envoy"


def record(
    *events: dict[str, str],
    name: str = "thing",
    ecosystem: str = "PyPI",
    versions: tuple[str, ...] = (),
    **more: Any,
) -> dict[str, Any]:
    """Return a record about a package, with one range if there are events."""
    ranges = [{"type": "ECOSYSTEM", "events": list(events)}] if events else []
    affected = {"package": {"ecosystem": ecosystem, "name": name}, "ranges": ranges, "versions": list(versions)}
    return {"id": "OSV-1", "modified": "2026-01-01T00:00:00Z", "affected": [affected]} | more


def affects(document: dict[str, Any], version: str, name: str = "thing", ecosystem: str = "PyPI") -> bool:
    return effect(msgspec.convert(document, Record), ecosystem, name, version) is not None


ZERO = {"introduced": "0"}


@pytest.mark.parametrize(
    ("events", "affected", "safe"),
    [
        (
            [ZERO, {"fixed": "2.0"}],
            ["0", "0.1", "1.9.9", "2.0rc1", "2.0.dev1"],
            ["2.0", "2.0.0", "2.0.post1", "2.1", "1!0.1"],
        ),
        ([{"introduced": "1.0"}, {"fixed": "1.5"}], ["1.0", "1.4.9", "1.5a1"], ["0.9", "1.0rc1", "1.5", "2"]),
        (
            [{"introduced": "1.0"}, {"last_affected": "1.5"}],
            ["1.0", "1.5", "1.5.0"],
            ["0.9", "1.5.1", "1.5.post1", "2"],
        ),
        ([{"introduced": "1.0"}], ["1.0", "99"], ["0.9"]),
        ([ZERO], ["0.0.1", "1!5"], []),
        # The order of events does not matter, and neither do several spans.
        (
            [{"fixed": "3.2"}, {"introduced": "3.0"}, {"fixed": "2.5"}, ZERO],
            ["1", "2.4", "3.0", "3.1"],
            ["2.5", "2.9", "3.2"],
        ),
        # By PEP 440, not by text: 1.10 comes after 1.9, and an epoch before everything.
        ([{"introduced": "1.9"}, {"fixed": "1.10"}], ["1.9", "1.9.5"], ["1.10", "1.11", "1.2"]),
        ([{"introduced": "1!1.0"}, {"fixed": "1!2.0"}], ["1!1.0", "1!1.9"], ["1.5", "1!2.0", "2!1.5"]),
        # Introduced again where it was fixed: affected.
        ([ZERO, {"fixed": "1.0"}, {"introduced": "1.0"}, {"fixed": "2.0"}], ["0.5", "1.0", "1.5"], ["2.0"]),
        ([{"introduced": "1.0"}, {"last_affected": "1.0"}], ["1.0"], ["0.9", "1.0.1"]),
        ([ZERO, {"limit": "2.0"}], ["1.9"], ["2.0", "3"]),
    ],
)
def test_ranges(events: list[dict[str, str]], affected: list[str], safe: list[str]) -> None:
    assert [version for version in affected if not affects(record(*events), version)] == []
    assert [version for version in safe if affects(record(*events), version)] == []


@pytest.mark.parametrize(
    ("events", "affected", "safe"),
    [
        ([ZERO, {"fixed": "1.40.1"}], ["1.40.0", "v1.40.0", "1.9.0", "1.40.1-rc.1"], ["1.40.1", "1.41.0"]),
        (
            [{"introduced": "1.2.0-beta.2"}, {"fixed": "1.2.0"}],
            ["1.2.0-beta.2", "1.2.0-beta.11", "1.2.0-rc"],
            ["1.2.0-beta.1", "1.2.0-beta", "1.2.0"],
        ),
        ([ZERO, {"fixed": "0.0.0-20260101000000-abcdefabcdef"}], ["v0.0.0-20251231000000-abcdefabcdef"], ["v0.0.1"]),
        ([ZERO, {"fixed": "2.5.1"}], ["v2.5.0+incompatible"], ["v2.5.1+incompatible"]),
    ],
)
def test_semantic_versions(events: list[dict[str, str]], affected: list[str], safe: list[str]) -> None:
    document = record(*events, ecosystem="Go")
    assert [version for version in affected if not affects(document, version, ecosystem="Go")] == []
    assert [version for version in safe if affects(document, version, ecosystem="Go")] == []


def test_listed_versions_count_beside_ranges() -> None:
    document = record({"introduced": "3"}, versions=("1.0", "2.0.0", "not a version"))
    assert affects(document, "1.0.0")
    assert affects(document, "2.0")
    assert affects(document, "3.1")
    assert not affects(document, "1.1")


def test_names_are_compared_as_the_ecosystem_does() -> None:
    assert affects(record(ZERO, name="My_Thing"), "1", name="my-thing")
    assert not affects(record(ZERO, name="Example.com/Thing", ecosystem="Go"), "1.0.0", "example.com/thing", "Go")
    assert not affects(record(ZERO, name="thing", ecosystem="npm"), "1")


def test_a_withdrawn_record_does_not_count() -> None:
    assert not affects(record(ZERO, withdrawn="2026-02-01T00:00:00Z"), "1")


def test_any_of_several_entries_counts() -> None:
    document = record({"introduced": "5"})
    document["affected"] += record({"introduced": "1"}, {"fixed": "2"})["affected"]
    assert affects(document, "1.5")
    assert affects(document, "6")
    assert not affects(document, "3")


@pytest.mark.parametrize("document", [record(), record({"introduced": "one"}), record(ZERO, {"fixed": "?"})])
def test_what_cannot_be_decided_is_a_finding_in_doubt(document: dict[str, Any]) -> None:
    affected = effect(msgspec.convert(document, Record), "PyPI", "thing", "1")
    assert affected is not None
    assert affected.doubt


def test_the_fix_is_the_next_one() -> None:
    document = record(ZERO, {"fixed": "1.5"}, {"introduced": "2"}, {"fixed": "2.5"})
    effects = [effect(msgspec.convert(document, Record), "PyPI", "thing", version) for version in ("1", "2")]
    assert effects == [Effect("1.5"), Effect("2.5")]


def commits(versions: list[str], **database: Any) -> Record:
    """Return a record that names commits of Envoy, as the records that OSV makes of CVE records do."""
    events = [ZERO, {"fixed": "0123456789abcdef0123456789abcdef01234567"}]
    git = {"type": "GIT", "repo": f"{ENVOY}.git", "events": events} | database
    affected = [{"ranges": [git], "versions": versions}]
    return msgspec.convert({"id": "CVE-2026-1", "modified": "2026", "affected": affected}, Record)


def test_records_that_name_commits_count_by_their_tags_and_versions() -> None:
    repository = "github.com/envoyproxy/envoy"
    assert repository_effect(commits(["v1.39.0", "v1.40.0"]), repository, "1.40.0") == Effect()
    assert repository_effect(commits(["v1.39.0"]), repository, "1.40.0") is None
    by_version = {"versions": [{"introduced": "1.39.0"}, {"fixed": "1.40.2"}]}
    assert repository_effect(commits([], database_specific=by_version), repository, "1.40.0") == Effect("1.40.2")
    assert repository_effect(commits([], database_specific=by_version), repository, "1.40.2") is None
    in_doubt = repository_effect(commits([]), repository, "1.40.0")
    assert in_doubt is not None
    assert in_doubt.doubt
    assert repository_effect(commits([]), "github.com/other/thing", "1.40.0") is None


def test_records_that_are_aliases_are_one_vulnerability() -> None:
    documents = [
        record(ZERO, id="GHSA-1", aliases=["CVE-1"]),
        record(ZERO, {"fixed": "2"}, id="PYSEC-1", aliases=["CVE-1", "OTHER"]),
        record(ZERO, id="GHSA-2"),
    ]
    records = {document["id"]: msgspec.convert(document, Record) for document in documents}
    component = Component("thing", "1", "pkg:pypi/thing@1", ("run",), listed_as=(("PyPI", "thing"),))
    findings = find_vulnerable([component], records)
    assert [finding.ids for finding in findings] == [("CVE-1", "GHSA-1", "OTHER", "PYSEC-1"), ("GHSA-2",)]
    assert findings[0].effect == Effect("2")


def test_forms_of_lists(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(record(id="A")))
    (tmp_path / "many.json").write_text(json.dumps([record(id="B"), record(id="C")]))
    (tmp_path / "answer.json").write_text(json.dumps({"vulns": [record(id="D")]}))
    folder = tmp_path / "folder" / "below"
    folder.mkdir(parents=True)
    (folder / "e.json").write_text(json.dumps(record(id="E")))
    (folder / "README.md").write_text("not a record")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("F.json", json.dumps(record(id="F")))
    names = ("one.json", "many.json", "answer.json", "folder", "all.zip")
    assert sorted(read_records([tmp_path / name for name in names])) == list("ABCDEF")


def test_the_later_of_two_versions_of_a_record_counts(tmp_path: Path) -> None:
    versions = [record(ZERO, modified="2026-03-01T00:00:00Z", withdrawn="2026-03-01T00:00:00Z"), record(ZERO)]
    (tmp_path / "list.json").write_text(json.dumps(versions))
    assert read_records([tmp_path / "list.json"])["OSV-1"].withdrawn


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[1]",
        "{}",
        '{"id": 7, "modified": ""}',
        '{"id": "X", "modified": "", "affected": {}}',
        '{"id": "X", "modified": "", "affected": [{"package": {"name": "thing"}}]}',
        '{"id": "X", "modified": "", "affected": [{"ranges": [{"type": "SEMVER", "events": ["0"]}]}]}',
        "[" * 100_000,
        "PK\x03\x04 cut short",
    ],
)
def test_a_list_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "list.json").write_text(text)
    with pytest.raises(ListError, match=r"list\.json"):
        read_records([tmp_path / "list.json"])


def test_an_empty_folder_is_not_a_list(tmp_path: Path) -> None:
    with pytest.raises(ListError, match="at least one record"):
        read_records([tmp_path])


def audit(tmp_path: Path, *documents: dict[str, Any], accept: tuple[str, ...] = ()) -> Result:
    """Run the command on the project's own locks with these records."""
    (tmp_path / "list.json").write_text(json.dumps(documents))
    options = [word for identifier in accept for word in ("--accept", identifier)]
    return CliRunner().invoke(main, ["audit", str(tmp_path / "list.json"), *options])


def locked(name: str) -> Component:
    return next(component for component in read_inventory(ROOT) if component.name == name)


def test_the_command_finds_packages_envoy_and_go_modules(tmp_path: Path) -> None:
    done = audit(
        tmp_path,
        record(ZERO, {"fixed": "9999"}, name="PyYAML", id="A-1", aliases=["CVE-7"]),
        record(ZERO, {"fixed": locked("click").version}, name="click", id="A-2"),
        record(ZERO, name="github.com/envoyproxy/envoy", ecosystem="Go", id="A-3"),
        record(ZERO, name="k8s.io/kubernetes", ecosystem="Go", id="A-4"),
        record(ZERO, name="no-such-package", id="A-5"),
        record(ZERO, name="go.etcd.io/etcd/server/v3", ecosystem="Go", id="A-6"),
    )
    assert done.exit_code == 1
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert rows["pyyaml"] == ["pyyaml", locked("pyyaml").version, "run", "A-1", "CVE-7", "9999"]
    assert rows["envoy"] == ["envoy", locked("envoy").version, "run", "A-3", "not", "known"]
    assert rows["k8s.io/kubernetes"][2:4] == ["develop", "A-4"]
    assert rows["go.etcd.io/etcd/server/v3"][2:4] == ["develop", "A-6"]
    assert "A-2" not in done.stdout
    assert "A-5" not in done.stdout
    assert "4 vulnerabilities" in done.stdout


def test_the_command_says_when_nothing_is_affected_and_what_was_not_checked(tmp_path: Path) -> None:
    done = audit(tmp_path, record(ZERO, name="no-such-package"))
    assert done.exit_code == 0
    assert "0 vulnerabilities" in done.stdout
    assert "no record is about Go" in done.stderr


def test_an_accepted_vulnerability_does_not_count(tmp_path: Path) -> None:
    done = audit(tmp_path, record(ZERO, name="pyyaml", aliases=["CVE-7"]), accept=("CVE-7", "CVE-8"))
    assert done.exit_code == 0
    assert "0 vulnerabilities, and 1 accepted" in done.stdout
    assert "`CVE-8` is accepted but affects nothing" in done.stderr


def test_without_a_list_nothing_was_checked() -> None:
    done = CliRunner().invoke(main, ["audit"])
    assert done.exit_code == 2
    assert "nothing was checked" in done.stderr
    assert "OSV" in done.stderr


def test_a_bad_list_is_not_a_clean_result(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("{")
    done = CliRunner().invoke(main, ["audit", str(tmp_path / "list.json")])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "list.json" in done.stderr
    assert CliRunner().invoke(main, ["audit", str(tmp_path / "absent.json")]).exit_code == 2


def test_a_list_cannot_forge_lines(tmp_path: Path) -> None:
    done = audit(tmp_path, record(ZERO, name="pyyaml", id="A\n0 vulnerabilities\x1b[2K"))
    assert done.exit_code == 1
    assert "\n0 vulnerabilities" not in done.stdout
    assert "\x1b" not in done.stdout
