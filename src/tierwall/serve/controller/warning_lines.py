"""The findings of a change as warnings: one line each, the worst first, for one user (docs/warnings.md#what-is-said).

An API server drops a warning that has a control character, and shares 4,096 characters among all webhooks. So lines are
short, there are few of them, and the last one says how many there are not.

A warning names another object only to those who may read it (docs/warnings.md#who-learns-what).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from msgspec import Struct

from tierwall.analyze.change_findings import NOT_COMPARED, WORST_FIRST, ChangeFindings
from tierwall.core.catalogue import CATALOGUE
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.unprintable import escape_unprintable
from tierwall.core.words import join_names
from tierwall.network.model.policies import NETWORK_POLICY
from tierwall.resources.resource import Resource, list_of_maps, nested_map
from tierwall.serve.controller.requester_view import POD, SERVICE_ACCOUNT, RequesterView
from tierwall.values.pattern import pattern

MAX_LINES = 5
MAX_LENGTH = 199
# Of so many names, the first that a user may read is looked for.
MAX_ASKED = 100
MORE = "tierwall check --cluster FILE"
NOT_YET = "tierwall: not checked yet: the cluster is still being read"
NOT_IN_TIME = f"tierwall: not checked in time; run {MORE}"
FAILED = f"tierwall: not checked because of an error; run {MORE}"

BACKEND = "XBackend"
DISAGREES, SHARES = "TW201", "TW216"
DENIED, OPENED, PARTLY = "TW202", "TW212", "TW203"
OVERRIDDEN = (DENIED, OPENED, PARTLY)
# These are about pods that a policy selects, or does not.
_OF_SELECTED_PODS = ("TW204", "TW205", "TW213")
# What is said without the names of other objects. Where there is nothing, only those who may read them are told.
_WITHOUT_NAMES = {
    "TW207": "a rule of {policy} can never count: earlier rules settle whatever it matches",
    "TW217": "{policy} opens pods to the outside",
    "TW303": "a setting of {policy} never takes effect: another policy overrides it",
    "TW304": "{policy} and another policy set the same field with equal precedence",
    "TW305": "{policy} widens the authorization of a less specific policy",
    "TW306": "{policy} drops half of a setting of a less specific policy",
    "TW406": "{policy} grants tools that the other level does not grant",
    "TW409": "{policy} is rejected on all its targets: one of them has too many policies",
}
_CONTROL = pattern(r"[\x00-\x1f\x7f-\x9f]")


class WarningLine(Struct, frozen=True):
    """One warning: its code, its text without the code, and whether the user may know of it.

    `codes` are those of all findings that it stands for.
    """

    code: str
    text: str
    is_told: bool = True
    codes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return one_line(f"{self.code}: {self.text}")


def one_line(text: str) -> str:
    """Return a text as one short line that every API server passes on."""
    text = escape_unprintable(_CONTROL.sub(" ", text))
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"


def shown(lines: Sequence[WarningLine]) -> list[str]:
    """Return the warnings that a user is told: a few, and how many more there are."""
    told = list(dict.fromkeys(str(line) for line in lines if line.is_told))
    if len(told) <= MAX_LINES:
        return told
    return [*told[:MAX_LINES], f"and {len(told) - MAX_LINES} more: {MORE}"]


def refusal(lines: Iterable[WarningLine], codes: Collection[str]) -> str:
    """Return why a change is refused, if a finding has one of these codes; otherwise an empty text."""
    for line in lines:
        for code in (line.code, *line.codes):
            if code in codes:
                return one_line(f"{code}: {line.text if line.is_told else CATALOGUE[code].title}")
    return ""


class WarningBuilder:
    """Makes the warnings about one policy for one user."""

    def __init__(self, policy: Resource, view: RequesterView) -> None:
        self._policy, self._view = policy, view
        self._about = str(policy.reference)
        # Whether the policy was compared with all others.
        self._is_compared = True

    def lines(self, brought: ChangeFindings) -> list[WarningLine]:
        """Return a line for each finding, or for several that are alike, the worst first."""
        disagreeing = [finding for finding in brought.findings if finding.code == DISAGREES]
        overridden = [finding for finding in brought.findings if self._is_overridden(finding)]
        joined = {*map(id, disagreeing), *map(id, overridden)}
        self._is_compared = all(finding.code != NOT_COMPARED for finding in brought.findings)
        lines = [self._line(finding) for finding in brought.findings if id(finding) not in joined]
        if disagreeing:
            lines.append(self._disagreement(disagreeing))
        if overridden or brought.counted:
            lines.append(self._overriding(overridden, brought))
        return sorted(lines, key=lambda line: (WORST_FIRST.index(line.code), line.text))

    def _is_overridden(self, finding: Diagnostic) -> bool:
        """Whether a finding is about another policy that this one overrides."""
        return finding.code in OVERRIDDEN and str(finding.reference) != self._about

    def _disagreement(self, findings: Sequence[Diagnostic]) -> WarningLine:
        others: dict[str, None] = {}
        for finding in findings:
            subject = str(finding.reference)
            others |= dict.fromkeys(finding.related_objects if subject == self._about else (subject,))
        if not (named := self._named(others)):
            text = f"{self._about} has the same priority as another policy, and they disagree on some connections"
            return WarningLine(DISAGREES, text)
        text = f"{self._about} has the same priority as {named}, and they disagree"
        return WarningLine(DISAGREES, self._with_example(text, " on ", findings[0], others))

    def _named(self, objects: Iterable[str]) -> str:
        """Name the first of some objects that the user may read, and count the others; empty if they may read none."""
        ordered = sorted(objects)
        readable = next((name for name in ordered[:MAX_ASKED] if self._view.may_read([name])), "")
        return join_names([readable, *(name for name in ordered if name != readable)], 1) if readable else ""

    def _overriding(self, findings: Sequence[Diagnostic], brought: ChangeFindings) -> WarningLine:
        """Return the line about all NetworkPolicies that an admin policy overrides."""
        code = min((finding.code for finding in findings), key=OVERRIDDEN.index, default=PARTLY)
        names = sorted({str(finding.reference) for finding in findings})
        number = len({*names, *brought.counted})
        is_one = number == 1 and brought.is_complete
        alike = (finding for finding in findings if finding.code == code)
        shown = [finding for finding in alike if self._view.may_read([str(finding.reference)])]
        count = f"{'' if brought.is_complete else 'at least '}{number} NetworkPolic{'y' if number == 1 else 'ies'}"
        text = f"{self._about} overrides {count}"
        if shown:
            name = str(shown[0].reference)
            text = f"{self._about} overrides {name}" if is_one else f"{text}, for example {name}"
            text = self._with_example(text, ", for example on " if is_one else " on ", shown[0])
        return WarningLine(code, text, codes=tuple(finding.code for finding in findings))

    def _with_example(self, text: str, word: str, finding: Diagnostic, others: Iterable[str] = ()) -> str:
        """Add a connection that shows it, if there is room, for those who may know the pods and all policies."""
        longer = f"{text}{word}{finding.example}"
        is_short = len(f"{finding.code}: {longer}") <= MAX_LENGTH
        may_know = self._view.may_list(POD) and self._view.may_read(others)
        return longer if finding.example and is_short and may_know else text

    def _line(self, finding: Diagnostic) -> WarningLine:
        if finding.code in OVERRIDDEN:
            return self._overridden(finding)
        if finding.code == SHARES:
            return self._shared_priority(finding)
        if finding.code in _OF_SELECTED_PODS:
            return WarningLine(finding.code, finding.message, self._may_know_pods(finding))
        if self._may_know(finding):
            return WarningLine(finding.code, finding.message)
        words = _WITHOUT_NAMES.get(finding.code)
        return WarningLine(finding.code, (words or "").format(policy=self._about), words is not None)

    def _overridden(self, finding: Diagnostic) -> WarningLine:
        """Return the line for the author of a NetworkPolicy that admin policies override."""
        if not (admin := self._named(finding.related_objects)):
            # The author learns that there is such a policy, and nothing about it.
            text = f"an admin policy that you may not read overrides {self._about}"
            return WarningLine(PARTLY, text, codes=(finding.code,))
        is_one = len(finding.related_objects) == 1
        place = ", ".join(finding.places)
        if finding.code == DENIED:
            text = f"{admin} {'denies' if is_one else 'deny'} everything that {place} of {self._about} allows"
        elif finding.code == OPENED:
            side = "to" if place == "egress" else "from"
            text = f"{admin} {'allows' if is_one else 'allow'} everything {side} pods that {self._about} would drop"
        else:
            text = f"{admin} {'overrides' if is_one else 'override'} part of {self._about}"
        return WarningLine(finding.code, self._with_example(text, ", for example ", finding, finding.related_objects))

    def _shared_priority(self, finding: Diagnostic) -> WarningLine:
        with_whom = self._named(finding.related_objects) or "another policy"
        priority = self._policy.spec.get("priority")
        text = f"{self._about} has priority {priority}, as {with_whom} has"
        return WarningLine(SHARES, f"{text}; they do not contradict each other today" if self._is_compared else text)

    def _may_know_pods(self, finding: Diagnostic) -> bool:
        """Whether the user may list the pods that a selector could select."""
        if self._view.may_list(POD):
            return True
        home = self._policy.namespace
        if (self._policy.group, self._policy.kind) != NETWORK_POLICY or not self._view.may_list(POD, home):
            return False
        return finding.code == "TW204" or not _looks_elsewhere(self._policy.spec)

    def _may_know(self, finding: Diagnostic) -> bool:
        """Whether the user may know everything that the message of a finding says."""
        view, home = self._view, self._policy.namespace
        match finding.code:
            case "TW217":
                return view.may_list(POD, home) and view.may_list(NETWORK_POLICY, home)
            case "TW404":
                return all(view.may_list(SERVICE_ACCOUNT, namespace) for namespace in _account_namespaces(self._policy))
            case "TW406" | "TW407" | "TW408":
                group = self._policy.group
                return all(view.may_list((group, kind)) for kind in (BACKEND, self._policy.kind))
            case _:
                return view.may_read(finding.related_objects)


def _looks_elsewhere(spec: Any) -> bool:
    """Whether a NetworkPolicy has a peer in other namespaces."""
    rules = [*list_of_maps(spec.get("ingress")), *list_of_maps(spec.get("egress"))]
    return any(
        "namespaceSelector" in peer
        for rule in rules
        for side in ("from", "to")
        for peer in list_of_maps(rule.get(side))
    )


def _account_namespaces(policy: Resource) -> set[str]:
    """Return the namespaces of the ServiceAccounts that a policy names; empty for all of them."""
    namespaces = set()
    for rule in list_of_maps(policy.spec.get("rules")):
        source = nested_map(rule, "source")
        account = source.get("serviceAccount")
        namespace = account.get("namespace") if isinstance(account, dict) else ""
        namespaces.add(str(namespace or policy.namespace) if isinstance(account, dict) else "")
    return namespaces
