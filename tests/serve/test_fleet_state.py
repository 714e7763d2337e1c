"""`Programmed` is True only if every Envoy that must hold a generation has said that it does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.randomness import examples
from tierwall.serve.controller.envoy_report import (
    MAX_REFUSED,
    EnvoyReport,
    Generation,
    decode_report,
    encode_report,
    generation_digest,
    report_metadata,
)
from tierwall.serve.controller.fleet_state import (
    AWAY_S,
    GRACE_S,
    FleetView,
    GatewayDemand,
    ProgrammedReason,
    ProgrammedState,
)

GATEWAY: Generation = ("gateway", 1)
OLD: Generation = ("policy", 1)
NEW: Generation = ("policy", 2)
OTHER: Generation = ("other", 7)
NAME = "shop/agents"
PROGRAMMED = ProgrammedState(ProgrammedReason.PROGRAMMED)


def holds(*generations: Generation) -> frozenset[str]:
    return frozenset(map(generation_digest, generations))


def need(*generations: Generation, pods: tuple[str, ...] = (), refused: dict[Generation, str] | None = None) -> Any:
    return {NAME: GatewayDemand(GATEWAY, frozenset((GATEWAY, *generations)), refused or {}, frozenset(pods))}


def report(**envoys: frozenset[str]) -> tuple[str, EnvoyReport]:
    return NAME, EnvoyReport(held=envoys)


def reason(view: FleetView, needs: Any, reports: list[tuple[str, EnvoyReport]], now: float) -> tuple[str, str]:
    """The state of the new generation."""
    reason, message = view.state(needs, reports, now).policies[NEW]
    return str(reason), message


def test_every_envoy_of_every_replica_must_hold_a_generation() -> None:
    view, both = FleetView(), need(NEW, OTHER)
    first, behind = report(a=holds(GATEWAY, NEW, OTHER)), report(b=holds(GATEWAY, OLD, OTHER))
    state = view.state(both, [first, behind], 0)
    assert state.policies[NEW] == (
        ProgrammedReason.RECONCILING,
        "Not acknowledged yet by Envoy b of Gateway shop/agents",
    )
    # The policy that did not change stays in force.
    assert state.policies[OTHER] == PROGRAMMED
    assert state.gateways[NAME] == PROGRAMMED
    current = report(b=holds(GATEWAY, NEW, OTHER))
    assert view.state(both, [first, current], 1).policies[NEW] == PROGRAMMED


def test_without_an_envoy_nothing_is_in_force() -> None:
    expected = "Reconciling", "No Envoy of Gateway shop/agents is connected"
    assert reason(FleetView(), need(NEW), [], 0) == expected
    assert FleetView().state(need(NEW), [], 0).gateways[NAME][1] == expected[1]


def test_a_policy_of_two_gateways_is_as_good_as_the_worst() -> None:
    needs = need(NEW) | {"shop/other": GatewayDemand(("second", 1), frozenset((("second", 1), NEW)), {})}
    view, full = FleetView(), report(a=holds(GATEWAY, NEW))
    assert reason(view, needs, [full], 0)[0] == "Reconciling"
    assert reason(view, needs, [full, ("shop/other", EnvoyReport(held={"c": holds(("second", 1), NEW)}))], 0) == (
        "Programmed",
        "",
    )


def test_what_an_engine_refuses_is_said_with_its_words() -> None:
    view, full = FleetView(), report(a=holds(GATEWAY))
    assert reason(view, need(refused={NEW: "it is too long"}), [full], 0) == ("EngineRefused", "it is too long")
    elsewhere = NAME, EnvoyReport(held={"b": holds(GATEWAY)}, refused={generation_digest(NEW): "no such thing"})
    assert reason(view, need(NEW), [full, elsewhere], 0) == ("EngineRefused", "no such thing")


def test_an_envoy_that_moves_changes_nothing() -> None:
    view, needs, full = FleetView(), need(NEW), holds(GATEWAY, NEW)
    assert reason(view, needs, [report(a=full)], 0)[0] == "Programmed"
    assert reason(view, needs, [], GRACE_S - 1)[0] == "Programmed"
    arriving = NAME, EnvoyReport(held={"a": frozenset()}, arriving=frozenset("a"))
    assert reason(view, needs, [arriving], GRACE_S - 1)[0] == "Programmed"
    # A replica that is behind, and takes something away from it, is believed.
    assert reason(view, needs, [report(a=holds(GATEWAY, OLD))], GRACE_S)[0] == "Reconciling"


def test_a_new_generation_is_never_in_force_in_an_envoy_that_is_on_its_way() -> None:
    view, old = FleetView(), holds(GATEWAY, OLD)
    view.state(need(OLD), [report(a=old)], 0)
    arriving = NAME, EnvoyReport(held={"a": frozenset()}, arriving=frozenset("a"))
    for reports in ([], [arriving]):
        assert reason(view, need(NEW), reports, 1)[0] == "Reconciling"


def test_an_envoy_that_is_away_counts_until_it_is_gone() -> None:
    view, full = FleetView(), holds(GATEWAY, NEW)
    alone = [report(b=full)]
    view.state(need(NEW, pods=("a", "b")), [report(a=full, b=full)], 0)
    away = "Reconciling", "Envoy a of Gateway shop/agents is not connected"
    assert reason(view, need(NEW, pods=("a", "b")), alone, GRACE_S) == away
    assert reason(view, need(NEW, pods=("a", "b")), alone, 10 * AWAY_S) == away
    assert reason(view, need(NEW, pods=("b",)), alone, 10 * AWAY_S)[0] == "Programmed"


def test_a_pod_that_starts_does_not_count_until_it_takes_too_long() -> None:
    view, needs = FleetView(), need(NEW, pods=("a", "b"))
    full = [report(b=holds(GATEWAY, NEW))]
    arriving = NAME, EnvoyReport(held={"a": frozenset()}, arriving=frozenset("a"))
    assert reason(view, needs, full, 0)[0] == "Programmed"
    assert reason(view, needs, [*full, arriving], 1)[0] == "Programmed"
    assert reason(view, needs, full, AWAY_S - 1)[0] == "Programmed"
    assert reason(view, needs, full, AWAY_S)[0] == "Reconciling"


def test_at_most_three_envoys_are_named() -> None:
    behind = report(**{name: frozenset[str]() for name in "abcde"})
    assert reason(FleetView(), need(NEW), [behind], 0)[1] == (
        "Not acknowledged yet by Envoys a, b, c and 2 more of Gateway shop/agents"
    )


_DIGESTS = st.frozensets(st.integers(0, 50).map(lambda number: generation_digest(("uid", number))), max_size=8)
_REPORTS = st.builds(
    EnvoyReport,
    held=st.dictionaries(st.text("ab-", min_size=1, max_size=4), _DIGESTS, max_size=4),
    arriving=st.frozensets(st.text("ab-", min_size=1, max_size=4), max_size=2),
    refused=st.dictionaries(st.integers(0, 9).map(lambda n: generation_digest(("r", n))), st.text(max_size=20)),
    problems=st.lists(st.text(max_size=20), max_size=3).map(tuple),
)


@settings(max_examples=examples(60))
@given(_REPORTS)
def test_a_report_survives_its_annotation(given_report: EnvoyReport) -> None:
    text = encode_report(given_report)
    assert decode_report(text) == given_report
    assert encode_report(decode_report(text)) == text


@pytest.mark.parametrize("text", ["", "[]", "{", '{"groups": 3}'])
def test_an_annotation_that_is_not_a_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_report(text)


def test_ten_thousand_policies_fit_into_a_lease() -> None:
    held = holds(*((f"policy-{number}", 1) for number in range(10_000)))
    refused = {generation_digest(("refused", number)): "x" * 2000 for number in range(2 * MAX_REFUSED)}
    text = encode_report(EnvoyReport(held={"a": held, "b": held}, refused=refused))
    metadata = report_metadata(NAME, text)
    # An object has at most 256 KiB of annotations.
    assert sum(len(value) for value in metadata["annotations"].values()) < 200_000


def test_a_report_that_no_lease_takes_says_that_nothing_is_held() -> None:
    """Whoever runs Envoys may have thousands of them, each with a long name."""
    envoys = {f"{number}-{'x' * 250}": holds(NEW) for number in range(1_000)}
    text = encode_report(EnvoyReport(held=envoys, problems=("\x01" * 500,) * 50))
    assert len(text) < 256 << 10
    said = decode_report(text)
    assert reason(FleetView(), need(NEW), [(NAME, said), report(a=holds(NEW))], 0) == (
        "Reconciling",
        "Not acknowledged yet by Envoy of a replica, whose report would be too long, of Gateway shop/agents",
    )
