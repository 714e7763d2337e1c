"""Test the status that a controller would write: each situation, the limits, and that policies recover."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tierwall.analyze.attachment import unattached_policies
from tierwall.analyze.statuses import statuses
from tierwall.attach.status import MAX_ANCESTORS, PolicyStatus, bounded_message
from tierwall.cli.main import root
from tierwall.core.diagnostics import UnknownName
from tierwall.gateway.question import GatewayQuestion, ask
from tierwall.render.status import status_document
from tierwall.resources.admission import admit
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import BackendRefGrants, Snapshot

API = "gateway.networking.k8s.io"
AGENTIC = "agentic.networking.x-k8s.io"


def manifest(api: str, kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "ns", **metadata}, "spec": spec}


def gateway(name: str = "gw") -> dict[str, Any]:
    listener = {"name": "web", "port": 80, "protocol": "HTTP"}
    return manifest(f"{API}/v1", "Gateway", name, {"gatewayClassName": "c", "listeners": [listener]})


def route(name: str = "route", *parents: str) -> dict[str, Any]:
    refs = [{"name": parent} for parent in parents or ("gw",)]
    return manifest(f"{API}/v1", "HTTPRoute", name, {"parentRefs": refs, "rules": [{"name": "rule"}]})


def policy(name: str, *targets: str, traffic: Any = None, created: str | None = None) -> dict[str, Any]:
    refs = [dict(zip(("kind", "name"), target.split("/"), strict=True)) | {"group": API} for target in targets]
    spec = {"targetRefs": refs, "traffic": traffic or {"timeouts": {"request": "5s"}}}
    metadata = {"creationTimestamp": created} if created else {}
    return manifest("agentgateway.dev/v1alpha1", "AgentgatewayPolicy", name, spec, **metadata)


def access_policy(name: str, target: str = "gw", created: str | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"creationTimestamp": created} if created else {}
    refs = [{"group": API, "kind": "Gateway", "name": target}]
    return manifest(
        f"{AGENTIC}/v1alpha1", "XAccessPolicy", name, {"targetRefs": refs, "action": "Allow"} | spec, **metadata
    )


def conditions(
    name: str, *objects: dict[str, Any], grants: BackendRefGrants = "route"
) -> dict[str, dict[str, tuple[bool, str, str]]]:
    """Return status, reason and message of each condition, by ancestor and type."""
    everything = statuses(Snapshot.of(load_objects(objects), backend_ref_grants=grants))
    (policy_status,) = (status for status in everything if status.policy.name == name)
    assert isinstance(policy_status, PolicyStatus)
    return {
        ancestor.ref.name: {
            condition.type: (condition.status, condition.reason, condition.message) for condition in ancestor.conditions
        }
        for ancestor in policy_status.ancestors
    }


def test_a_valid_policy_has_every_condition_on_its_gateway() -> None:
    by_ancestor = conditions("p", gateway(), route(), policy("p", "HTTPRoute/route"))
    assert by_ancestor.keys() == {"gw"}
    assert {name: condition[:2] for name, condition in by_ancestor["gw"].items()} == {
        "Accepted": (True, "Valid"),
        "Attached": (True, "Attached"),
        "ResolvedRefs": (True, "ResolvedRefs"),
        "Conflicted": (False, "NoConflicts"),
        "Overridden": (False, "NotOverridden"),
    }
    assert by_ancestor["gw"]["Attached"][2] == "Attached to all targets"


def test_there_is_one_ancestor_per_gateway() -> None:
    by_ancestor = conditions(
        "p", gateway(), gateway("other"), route("route", "gw", "other"), policy("p", "HTTPRoute/route")
    )
    assert list(by_ancestor) == ["gw", "other"]


def test_a_missing_target_is_in_the_summary() -> None:
    by_ancestor = conditions("p", gateway(), route(), policy("p", "HTTPRoute/route", "HTTPRoute/gone"))
    assert by_ancestor["gw"]["Attached"][:2] == (True, "Attached")
    words = "Policy is not attached: HTTPRoute ns/gone not found"
    assert by_ancestor["StatusSummary"]["Attached"] == (False, "Pending", words)


def test_a_refused_policy_is_invalid_and_not_attached() -> None:
    by_ancestor = conditions("p", gateway(), policy("p", "Gateway/gw", traffic={"timeouts": {"request": "soon"}}))
    status, reason, message = by_ancestor["StatusSummary"]["Accepted"]
    assert (status, reason) == (False, "Invalid")
    assert message.endswith("requests to its targets are answered with 500 where Tierwall serves the Gateway")
    assert by_ancestor["StatusSummary"]["Attached"][2] == "Policy is not attached due to invalid status"


def test_a_bad_expression_makes_a_policy_valid_in_part() -> None:
    entry = {"condition": "a ==", "policy": {"status": 200}}
    broken = {"directResponse": {"conditional": [entry]}}
    partly = conditions("p", gateway(), policy("p", "Gateway/gw", traffic=broken | {"timeouts": {"request": "1s"}}))
    assert partly["gw"]["Accepted"][:2] == (True, "PartiallyValid")
    assert "is not a valid CEL expression: a ==" in partly["gw"]["Accepted"][2]


def test_a_broken_expression_of_a_metadata_context_is_found() -> None:
    processor = {"backendRef": {"name": "svc", "port": 80}, "metadataContext": {"space": {"key": "a_{{b}}"}}}
    by_ancestor = conditions("p", gateway(), policy("p", "Gateway/gw", traffic={"extProc": processor}))
    assert by_ancestor["gw"]["Accepted"][:2] == (True, "PartiallyValid")
    assert "traffic.extProc.metadataContext.space.key" in by_ancestor["gw"]["Accepted"][2]


BROKEN_RULES = {"authorization": {"policy": {"matchExpressions": ["a_{{b}}"]}}}
BROKEN_DELAY = {"delay": {"duration": "2 seconds"}}


@pytest.mark.parametrize(
    ("traffic", "accepted", "in_force"),
    [
        # The data plane gets the rule as it is, and denies.
        (BROKEN_RULES, (True, "PartiallyValid"), ["traffic.authorization"]),
        (BROKEN_DELAY | {"timeouts": {"request": "1s"}}, (True, "PartiallyValid"), ["traffic.timeouts"]),
        (BROKEN_DELAY | BROKEN_RULES, (True, "PartiallyValid"), ["traffic.authorization"]),
        # The controller makes nothing of a delay that it cannot read, and so nothing of this policy.
        (BROKEN_DELAY, (False, "Invalid"), []),
    ],
)
@pytest.mark.parametrize("profile", ["docs", "agentgateway"])
def test_status_and_effective_agree_on_broken_expressions(
    traffic: dict[str, Any], accepted: tuple[bool, str], in_force: list[str], profile: str
) -> None:
    objects = gateway(), policy("p", "Gateway/gw", traffic=traffic)
    (ancestor,) = conditions("p", *objects).values()
    assert ancestor["Accepted"][:2] == accepted
    assert ancestor["Attached"][0] == accepted[0]
    question = GatewayQuestion.from_dict({"gateway": "ns/gw", "profile": profile})
    answer = ask(Snapshot.of(load_objects(list(objects))), question).to_dict()
    assert list(answer["effective"]) == in_force
    kept = [note for note in answer["notes"] if "the setting counts, and the expression always fails" in note]
    left_out = [note for note in answer["notes"] if "the setting is left out" in note]
    assert (len(kept), len(left_out)) == ("authorization" in traffic, "delay" in traffic)


@pytest.mark.parametrize(
    ("ref", "grants", "resolved"),
    [
        ({"name": "gone", "port": 80}, "route", (False, "BackendNotFound")),
        ({"name": "far", "namespace": "other", "port": 80}, "route", (True, "ResolvedRefs")),
        ({"name": "far", "namespace": "other", "port": 80}, "strict", (False, "RefNotPermitted")),
    ],
)
def test_a_reference_that_does_not_resolve(
    ref: dict[str, Any], grants: BackendRefGrants, resolved: tuple[bool, str]
) -> None:
    far = manifest("v1", "Service", "far", {"ports": [{"port": 80}]}) | {
        "metadata": {"name": "far", "namespace": "other"}
    }
    asking = policy("p", "Gateway/gw", traffic={"extAuth": {"backendRef": ref, "grpc": {}}})
    by_ancestor = conditions("p", gateway(), far, asking, grants=grants)
    assert by_ancestor["gw"]["ResolvedRefs"][:2] == resolved


def test_equal_precedence_is_a_conflict_on_both_and_the_younger_recovers() -> None:
    old, new = policy("old", "Gateway/gw", created="2024-01-01T00:00:00Z"), policy("new", "Gateway/gw")
    condition = conditions("new", gateway(), old, new)["gw"]["Conflicted"]
    assert condition == (True, "EqualPrecedence", "traffic.timeouts: AgentgatewayPolicy/ns/old comes first")
    assert conditions("old", gateway(), old, new)["gw"]["Conflicted"][0] is True
    assert conditions("new", gateway(), new)["gw"]["Conflicted"][0] is False


def test_a_policy_whose_settings_are_replaced_everywhere_is_overridden() -> None:
    wide, narrow = policy("wide", "Gateway/gw"), policy("narrow", "HTTPRoute/route")
    condition = conditions("wide", gateway(), route(), wide, narrow)["gw"]["Overridden"]
    assert condition == (True, "Overridden", "traffic.timeouts: AgentgatewayPolicy/ns/narrow (Route) is more specific")
    more = policy("wide", "Gateway/gw", traffic={"timeouts": {"request": "5s"}, "retry": {"attempts": 1}})
    assert conditions("wide", gateway(), route(), more, narrow)["gw"]["Overridden"][1] == "PartiallyOverridden"


def test_more_ancestors_than_fit_are_summarised() -> None:
    names = [f"g{number:02}" for number in range(20)]
    by_ancestor = conditions("p", *map(gateway, names), route("route", *names), policy("p", "HTTPRoute/route"))
    assert len(by_ancestor) == MAX_ANCESTORS
    assert by_ancestor["StatusSummary"]["StatusSummarized"][2] == "5 AncestorRefs ignored due to max status size"


def _created(day: int) -> str:
    return f"2024-01-{day:02}T00:00:00Z"


def test_the_youngest_of_six_access_policies_exceeds_the_limit_and_recovers() -> None:
    six = [access_policy(f"p{day}", created=_created(7 - day)) for day in range(1, 7)]
    by_type = conditions("p1", gateway(), *six)["gw"]
    assert by_type["Accepted"][:2] == (False, "LimitPerTargetExceeded")
    for name in ("p2", "p6"):
        assert conditions(name, gateway(), *six)["gw"]["Accepted"][:2] == (True, "Accepted")
    assert conditions("p1", gateway(), *six[:-1])["gw"]["Accepted"][:2] == (True, "Accepted")


def test_an_access_policy_on_a_kind_that_it_cannot_guard_is_not_accepted() -> None:
    wrong = access_policy("p", targetRefs=[{"group": API, "kind": "HTTPRoute", "name": "route"}])
    words = "expected a Gateway or an XBackend as target, found HTTPRoute ns/route of group `gateway.networking.k8s.io`"
    by_type = conditions("p", gateway(), route(), wrong)["route"]
    assert by_type["Accepted"] == (False, "Invalid", words)
    assert by_type["Attached"][0] is False
    (finding,) = unattached_policies(Snapshot.of(load_objects([gateway(), route(), wrong])))
    assert (finding.code, finding.message) == ("TW301", f"XAccessPolicy/ns/p attaches nowhere: {words}")


def test_the_status_says_that_an_invalid_policy_closes_its_target_and_not_one_over_a_limit() -> None:
    broken = access_policy("p", rules=[{"name": "r", "authorization": {"type": "CEL", "cel": {"expression": "1"}}}])
    message = conditions("p", gateway(), broken)["gw"]["Accepted"][2]
    assert message.endswith("\nMeanwhile its targets are closed: every request to them is denied")
    six = [access_policy(f"p{day}", created=_created(7 - day)) for day in range(1, 7)]
    six[0] = broken | {"metadata": six[0]["metadata"]}
    accepted = conditions("p1", gateway(), *six)["gw"]["Accepted"]
    assert accepted[1] == "LimitPerTargetExceeded"
    assert "found int" in accepted[2]
    assert accepted[2].endswith("\nMeanwhile it is ignored")


def test_without_an_engine_no_status_says_programmed() -> None:
    everything = conditions("p", gateway(), route(), policy("p", "HTTPRoute/route", "HTTPRoute/gone"))
    everything |= conditions("q", gateway(), access_policy("q"))
    assert len(everything) == 2
    assert all("Programmed" not in by_type for by_type in everything.values())


def test_a_long_message_is_cut_and_says_what_the_policy_does_meanwhile() -> None:
    rules = [
        {"name": f"r{number}", "authorization": {"type": "CEL", "cel": {"expression": f"{'a' * 200}{number}"}}}
        for number in range(9)
    ]
    accepted = conditions("p", gateway(), access_policy("p", rules=rules))["gw"]["Accepted"]
    assert accepted[1] == "InvalidCEL"
    assert len(accepted[2].encode()) <= 1024
    *reasons, more, meanwhile = accepted[2].split("\n")
    assert reasons
    assert more.endswith(" more")
    assert meanwhile.startswith("Meanwhile its targets are closed")
    long = bounded_message(["é" * 2000], "Meanwhile it waits")
    assert long.endswith("é…\nMeanwhile it waits")
    assert 1000 < len(long.encode()) <= 1024


def test_a_target_takes_one_policy_with_external_auth() -> None:
    auth = {"protocol": "GRPC", "backendRef": {"name": "auth", "port": 80}, "grpc": {}}
    first, two = (
        access_policy(name, created=_created(day), action="ExternalAuth", externalAuth=auth)
        for name, day in (("one", 1), ("two", 2))
    )
    by_type = conditions("two", gateway(), first, two)["gw"]
    assert by_type["Accepted"][:2] == (False, "LimitPerTargetExceeded")
    assert by_type["Conflicted"][:2] == (True, "ExternalAuthHeld")
    assert by_type["ResolvedRefs"][:2] == (False, "BackendNotFound")
    assert conditions("one", gateway(), first, two)["gw"]["Accepted"][0] is True


def test_an_access_policy_with_bad_cel_is_rejected_and_recovers_when_corrected() -> None:
    def rule(text: str) -> dict[str, Any]:
        return access_policy("p", rules=[{"name": "r", "authorization": {"type": "CEL", "cel": {"expression": text}}}])

    assert conditions("p", gateway(), rule("1 +"))["gw"]["Accepted"][:2] == (False, "InvalidCEL")
    assert conditions("p", gateway(), rule("true"))["gw"]["Accepted"][:2] == (True, "Accepted")


def test_an_access_policy_on_a_missing_target_is_not_accepted() -> None:
    by_type = conditions("p", gateway(), access_policy("p", "gone"))["gone"]
    assert by_type["Accepted"][:2] == (False, "TargetNotFound")
    assert by_type["Attached"][:2] == (False, "Pending")


def documents(*objects: dict[str, Any]) -> list[dict[str, Any]]:
    return [status_document(status) for status in statuses(Snapshot.of(load_objects(objects)))]


def test_the_document_has_the_form_of_the_gateway_api_and_keeps_times() -> None:
    policy_object = policy("p", "Gateway/gw")
    policy_object["metadata"]["generation"] = 3
    status = documents(gateway(), policy_object)[0]["status"]
    assert admit(policy_object | {"status": status}) == []
    assert all(each["observedGeneration"] == 3 for each in status["ancestors"][0]["conditions"])
    for each in status["ancestors"][0]["conditions"]:
        each["lastTransitionTime"] = "2024-05-05T00:00:00Z"
    status["ancestors"][0]["conditions"][1]["status"] = "False"
    written = documents(gateway(), policy_object | {"status": status})[0]["status"]["ancestors"][0]["conditions"]
    times = {each["type"]: each["lastTransitionTime"] for each in written}
    assert times.pop("Attached") == "1970-01-01T00:00:00Z"
    assert set(times.values()) == {"2024-05-05T00:00:00Z"}


def foreign_entry(controller: str = "example.com/other") -> dict[str, Any]:
    condition = {
        "type": "Accepted",
        "status": "True",
        "reason": "Fine",
        "message": "",
        "lastTransitionTime": "2023-01-01T00:00:00Z",
    }
    ref = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "ns", "name": "gw"}
    return {"ancestorRef": ref, "controllerName": controller, "conditions": [condition]}


def test_the_document_keeps_what_other_controllers_wrote_and_takes_no_time_from_them() -> None:
    stored = {"ancestors": [foreign_entry()]}
    (document,) = documents(gateway(), policy("p", "Gateway/gw") | {"status": stored})
    theirs, ours = document["status"]["ancestors"]
    assert theirs == foreign_entry()
    assert ours["controllerName"] == "agentgateway.dev/agentgateway"
    assert {each["lastTransitionTime"] for each in ours["conditions"]} == {"1970-01-01T00:00:00Z"}


@pytest.mark.parametrize("others", [13, 14, 15, 16])
def test_entries_of_others_leave_less_room(others: int) -> None:
    gateways = [gateway(f"g{number}") for number in range(3)]
    targets = [f"Gateway/g{number}" for number in range(3)]
    stored = {"ancestors": [foreign_entry(f"example.com/{number}") for number in range(others)]}
    (document,) = documents(*gateways, policy("p", *targets) | {"status": stored})
    ours = document["status"]["ancestors"][others:]
    assert document["status"]["ancestors"][:others] == stored["ancestors"]
    last = {13: "g2", 14: "StatusSummary", 15: "StatusSummary", 16: ""}[others]
    assert (len(ours), ours[-1]["ancestorRef"]["name"] if ours else "") == (16 - others, last)


def test_status_prints_text_and_json_and_knows_its_policies(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    objects = [gateway(), route(), policy("p", "HTTPRoute/route"), access_policy("q")]
    file.write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects}))

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(root, ["status", *arguments, "-f", str(file)])

    text = run()
    assert text.exit_code == 0
    assert text.stdout.startswith("AgentgatewayPolicy/ns/p\n  Gateway/ns/gw\n    Accepted      True   Valid")
    assert "XAccessPolicy/ns/q" in text.stdout
    document = msgspec.json.decode(run("XAccessPolicy/ns/q", "-o", "json").stdout)
    assert document.keys() == {"items", "notConsidered"}
    (only,) = document["items"]
    assert only["status"]["ancestors"][0]["controllerName"] == "sigs.k8s.io/kube-agentic-networking-controller"
    wrong = run("XAccessPolicy/ns/r")
    assert wrong.exit_code == 1
    assert "there is no policy `XAccessPolicy/ns/r` (did you mean `XAccessPolicy/ns/q`?)" in wrong.stderr


def test_status_by_reference_reports_all_unknown_names_at_once() -> None:
    snapshot = Snapshot.of(load_objects([gateway(), policy("p", "Gateway/gw"), access_policy("q"), access_policy("r")]))
    assert [str(status.policy.reference) for status in statuses(snapshot)] == [
        "AgentgatewayPolicy/ns/p",
        "XAccessPolicy/ns/q",
        "XAccessPolicy/ns/r",
    ]
    twice = statuses(snapshot, "XAccessPolicy/ns/r", f"XAccessPolicy.{AGENTIC}/ns/r", "AgentgatewayPolicy/ns/p")
    assert [status.policy.name for status in twice] == ["p", "r"]
    with pytest.raises(UnknownName) as caught:
        statuses(snapshot, "XAccessPolicy/ns/qq", "XAccessPolicy.example.com/ns/q")
    assert [(diagnostic.code, diagnostic.message) for diagnostic in caught.value.diagnostics] == [
        ("TW704", "there is no policy `XAccessPolicy.example.com/ns/q`"),
        ("TW704", "there is no policy `XAccessPolicy/ns/qq`"),
    ]
