"""Questions to the gateway plane: which settings are in force at a place, and which objects set them?

docs/policy-tests.md#gateway, docs/semantics.md#what-a-gateway-answer-holds. Nothing about a place is inferred
(docs/semantics.md#nothing-about-a-place-is-inferred), and rules go by number or name
(docs/semantics.md#rules-go-by-number-or-name).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Self, assert_never, cast

from msgspec import structs

from tierwall.attach.listener import Listener, listeners
from tierwall.attach.place import (
    BACKEND,
    GATEWAY,
    GRPC_ROUTE,
    HTTP_ROUTE,
    INFERENCE_POOL,
    LISTENER_SET,
    MODEL,
    SERVICE,
    X_LISTENER_SET,
    service_port,
)
from tierwall.attach.reach import RouteRule
from tierwall.attach.section import WORDS, rule_name, rules, sections
from tierwall.core.answer import Answer, Decider, Omission, unique_deciders
from tierwall.core.diagnostics import Diagnostic, input_error, near_miss
from tierwall.core.expectation import Expectation, malformed_expectation
from tierwall.core.question import Question
from tierwall.core.reference import full_reference
from tierwall.core.words import as_given
from tierwall.engines.envoy.config.closings import closed_at
from tierwall.gateway.decide import Merger, merger
from tierwall.gateway.detail import GatewayDetail, Setting, equal_values
from tierwall.gateway.model.conditional import NO_FACTS, FactError, RequestFacts
from tierwall.gateway.model.fields import FIELDS, PHASES, PROFILES, Phase, Profile, field_hint
from tierwall.gateway.model.places import BackendKind, RequestPlace, levels, reachable_places
from tierwall.gateway.provenance import field_details, field_steps, profile_differences
from tierwall.gateway.sentence import notes, sentence
from tierwall.gateway.unenforced import unenforced_at
from tierwall.resources.finder import ResourceFinder, name_hint
from tierwall.resources.foreign import omissions
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import Snapshot

ROUTE_KINDS = {key[1]: key for key in (HTTP_ROUTE, GRPC_ROUTE)}
BACKEND_KINDS = {key[1]: key for key in (SERVICE, BACKEND, INFERENCE_POOL, MODEL)}
# A key on the left names a part of an object, which one of the keys on the right names.
PART_OF = {
    "listener": ("gateway", "listenerSet"),
    "parents": ("route",),
    "rule": ("route",),
    "backendSection": ("backend",),
}
PLACES = ("gateway", "listenerSet", "route", "backend")
PLACE_KEYS = ("gateway", "listenerSet", "listener", "parents", "route", "rule", "backend", "backendSection")


class GatewayQuestion(Question, frozen=True, kw_only=True):
    """A place, and known facts about the request there. Only the levels that the question names take part."""

    plane: ClassVar[str] = "gateway"
    names: ClassVar[tuple[str, ...]] = ("gateway", "listener_set")
    references: ClassVar[tuple[str, ...]] = ("route", "backend")

    gateway: str | None = None
    listener: str | None = None
    listener_set: str | None = None
    # The rules that delegate to the route, outermost first: `HTTPRoute/infra/shop#api`, or a number after `#`.
    parents: tuple[str, ...] = ()
    route: str | None = None
    rule: int | str | None = None
    backend: str | None = None
    backend_section: int | str | None = None
    profile: Profile = "docs"
    phase: Phase = "PostRouting"
    request: Mapping[str, Any] | None = None

    def in_namespace(self, namespace: str) -> Self:
        """Return this question with a namespace in each name that has none."""
        question = super().in_namespace(namespace)
        parents = cast(object, question.parents)  # not checked yet
        if not parents or not isinstance(parents, list | tuple):
            return question
        return structs.replace(question, parents=tuple(full_reference(parent, namespace) for parent in parents))

    @property
    def place(self) -> dict[str, Any]:
        """The keys that name the place, as a policy test writes them, with their values."""
        written = self.to_dict()
        return {key: written[key] for key in PLACE_KEYS if key in written}


QUESTION = GatewayQuestion


def ask(snapshot: Snapshot, question: GatewayQuestion, problems: Iterable[Diagnostic] = ()) -> Answer:
    """Answer a question about one place. InputError lists everything wrong with it, after `problems`."""
    all_problems = list(problems)
    place = _find_place(ResourceFinder(snapshot, all_problems), question.place)
    return _answerer(snapshot, question, all_problems)(place)


def place_asked_about(snapshot: Snapshot, question: GatewayQuestion) -> RequestPlace:
    """Return the place that a question names; InputError lists everything wrong with that."""
    problems: list[Diagnostic] = []
    place = _find_place(ResourceFinder(snapshot, problems), question.place)
    if problems:
        raise input_error(problems)
    return place


def ask_everywhere(snapshot: Snapshot, question: GatewayQuestion) -> Iterator[Answer]:
    """Answer a question, which does not name a place, for every place that a request can reach."""
    problems = [
        Diagnostic("TW703", f"`{key}` names a place in a question about all places", hint=f"leave `{key}` out")
        for key in question.place
    ]
    return map(_answerer(snapshot, question, problems), reachable_places(snapshot))


def _answer(mergers: Mapping[Profile, Merger], chosen: Merger, place: RequestPlace) -> Answer:
    merged = {profile: merging.merge_at(place) for profile, merging in mergers.items()}
    details = tuple(field_details(chosen, place, merged[chosen.profile]))
    effective = {detail.field: detail.setting.with_own_value() for detail in details if detail.setting is not None}
    detail = GatewayDetail(
        effective=MappingProxyType(effective),
        conflicts=tuple(detail.field for detail in details if detail.conflict),
        place=str(place),
        profile=chosen.profile,
        phase=chosen.phase,
        fields=details,
        profiles_differ=tuple(profile_differences(merged)),
        levels={
            section: tuple(level.label for level in section_levels)
            for section, section_levels in levels(place, chosen.profile).items()
        },
        notes=(
            *notes(chosen.snapshot, place),
            *unenforced_at(chosen, place, merged[chosen.profile]),
            *closed_at(chosen.snapshot, chosen.profile, place),
        ),
    )
    return Answer(
        plane=GatewayQuestion.plane,
        verdict=None,
        sentence=sentence(detail),
        decided_by=unique_deciders(Decider(source) for setting in effective.values() for source in setting.sources),
        steps=tuple(field_steps(place, chosen.profile, details)),
        detail=detail,
        not_considered=_omissions(chosen.snapshot, place),
    )


def _omissions(snapshot: Snapshot, place: RequestPlace) -> tuple[Omission, ...]:
    named = place.objects
    targets = [part.reference for part in named]
    return omissions(snapshot, "gateway", {part.namespace for part in named}, targets=targets, named=named)


def _answerer(
    snapshot: Snapshot, question: GatewayQuestion, problems: list[Diagnostic]
) -> Callable[[RequestPlace], Answer]:
    """Return a function that answers the question at a place. InputError lists everything wrong with the question."""
    # The values of a question from YAML are not checked yet; null stands for the default.
    profile = "docs" if cast(object, question.profile) is None else question.profile
    phase = "PostRouting" if cast(object, question.phase) is None else question.phase
    for key, value, known in (("profile", profile, PROFILES), ("phase", phase, PHASES)):
        if value not in known:
            message = f"expected one of {', '.join(known)} as `{key}`, found {as_given(value)}"
            problems.append(Diagnostic("TW703", message, hint=near_miss(str(value), known)))
    facts = _facts(question.request, problems)
    if problems:
        raise input_error(problems)
    # An answer also says where the other profile differs, so it needs both.
    mergers = {name: merger(snapshot, name, phase, facts) for name in PROFILES}
    return partial(_answer, mergers, mergers[profile])


def _facts(request: object, problems: list[Diagnostic]) -> RequestFacts:
    if request is not None and not isinstance(request, Mapping):
        problems.append(Diagnostic("TW703", f"expected a map of facts as `request`, found {as_given(request)}"))
    elif request:
        try:
            return RequestFacts(cast(Mapping[str, Any], request))
        except FactError as error:
            problems += [Diagnostic("TW703", message) for message in error.messages]
    return NO_FACTS


def _find_place(finder: ResourceFinder, given: Mapping[str, Any]) -> RequestPlace:
    """Find the place that a question names. Everything wrong with it is added to the finder's problems."""
    for key, wholes in PART_OF.items():
        if key in given and not any(whole in given for whole in wholes):
            finder.report_invalid(f"expected `{'` or `'.join(wholes)}` together with `{key}`, found none")
    if not given:
        finder.report_invalid(f"expected at least one of `{'`, `'.join(PLACES)}`, found none")
    gateway = listener_set = listener = route = rule = backend = None
    section = ""
    if "gateway" in given:
        gateway = finder.by_name("gateway", given["gateway"], (GATEWAY,))
    if "listenerSet" in given:
        listener_set = finder.by_name("listenerSet", given["listenerSet"], (LISTENER_SET, X_LISTENER_SET))
    owner = listener_set if "listenerSet" in given else gateway
    if "listener" in given and owner is not None:
        listener = _listener(finder, given["listener"], owner)
    parents = tuple(_parents(finder, given["parents"])) if "parents" in given else ()
    if "route" in given:
        route = finder.by_reference("route", given["route"], ROUTE_KINDS)
    if "rule" in given and route is not None:
        rule = _rule(finder, given["rule"], route)
    if "backend" in given:
        backend = finder.by_reference("backend", given["backend"], BACKEND_KINDS)
    if "backendSection" in given and backend is not None:
        section = _section(finder, given["backendSection"], backend)
    return RequestPlace(gateway, listener_set, listener, route, rule, backend, section, parents)


def _listener(finder: ResourceFinder, name: object, owner: Resource) -> Listener | None:
    names = []
    for listener in listeners(owner):
        if listener.name == name:
            return listener
        names.append(listener.name)
    finder.report_missing(f"there is no listener `{name}` in {owner.reference}", name_hint(name, names, "listeners"))
    return None


def _parents(finder: ResourceFinder, given: object) -> Iterator[RouteRule]:
    """Yield the rules that delegate; a route with one rule needs no `#rule`."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        finder.report_invalid(
            f"expected a list such as [HTTPRoute/infra/shop#api] as `parents`, found {as_given(given)}"
        )
        return
    for value in given:
        reference, _, written = str(value).partition("#")
        route = finder.by_reference("parents", reference, {HTTP_ROUTE[1]: HTTP_ROUTE})
        if route is None:
            continue
        if not written and len(rules(route)) > 1:
            hint = f"write {reference}#0, or a rule's name after `#`"
            finder.report_invalid(f"expected the rule of {reference} that delegates, found none", hint)
            continue
        is_number = written.isascii() and written.isdigit() and len(written) < 6
        rule = _rule(finder, int(written) if is_number else written or 0, route)
        if rule is not None:
            yield RouteRule(route, rule)


def _rule(finder: ResourceFinder, value: object, route: Resource) -> int | None:
    """Return the number of a rule that is given by number or by name."""
    names = [rule_name(rule) for rule in rules(route)]
    if type(value) is int:
        if 0 <= value < len(names):
            return value
        hint = f"write a number from 0 to {len(names) - 1}" if names else "it has no rules"
        finder.report_missing(f"there is no rule {value} in {route.reference}", hint)
        return None
    if not isinstance(value, str) or not value:
        finder.report_invalid(f"expected a number from 0 or a rule name as `rule`, found {as_given(value)}")
        return None
    if value in names:
        return names.index(value)
    hint = name_hint(value, filter(None, names), "named rules")
    finder.report_missing(f"there is no rule named `{value}` in {route.reference}", hint)
    return None


def _section(finder: ResourceFinder, value: object, backend: Resource) -> str:
    """Return the section of a backend in its canonical spelling."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        finder.report_invalid(
            f"expected a port number or a sub-backend name as `backendSection`, found {as_given(value)}"
        )
        return ""
    known = sections(backend)
    match BackendKind(backend.kind):
        case BackendKind.INFERENCE_POOL:
            return ""  # pools do not have sections, so a section is ignored
        case BackendKind.SERVICE:
            text = service_port(value)
            # A Service that lists no ports (a headless one, or a stub) has whatever port the question gives.
            if not known and text.isdigit():
                return text
        case BackendKind.AGENTGATEWAY_BACKEND | BackendKind.AGENTGATEWAY_MODEL:
            text = str(value)
        case unknown:
            assert_never(unknown)
    if text in known:
        return text
    word = WORDS[backend.group, backend.kind]
    finder.report_missing(f"there is no {word} `{value}` in {backend.reference}", name_hint(value, known, f"{word}s"))
    return ""


def _effective_problems(key: str, value: Any) -> Iterator[Diagnostic]:
    if not isinstance(value, Mapping):
        yield malformed_expectation(key, "a map of fields", value)
        return
    for path, wanted in value.items():
        if path not in FIELDS:
            yield _no_field(path)
        elif wanted is not None and not (isinstance(wanted, Mapping) and wanted.keys() <= {"value", "from"}):
            yield Diagnostic("TW701", f"expected `value` and `from`, or null, as `{path}`, found {as_given(wanted)}")


def _effective_differences(key: str, value: Any, answer: Answer) -> Iterator[str]:
    for path, wanted in value.items():
        yield from _differences(path, wanted, answer.detail.effective.get(path))


def _differences(path: str, wanted: Mapping[str, Any] | None, setting: Setting | None) -> Iterator[str]:
    if wanted is None:
        if setting is not None:
            yield f"{path}: expected not set, got {setting.value} from {', '.join(map(str, setting.sources))}"
    elif setting is None:
        yield f"{path}: expected {dict(wanted)}, got not set"
    else:
        if "value" in wanted and not equal_values(wanted["value"], setting.value):
            yield f"{path} value: expected {wanted['value']}, got {setting.value}"
        if "from" in wanted and wanted["from"] != setting.written_from:
            yield f"{path} from: expected {wanted['from']}, got {setting.written_from}"


def _conflicts_problems(key: str, value: Any) -> Iterator[Diagnostic]:
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        yield malformed_expectation(key, "a list of field paths", value)
    else:
        yield from (_no_field(path) for path in value if path not in FIELDS)


def _conflicts_differences(key: str, value: Any, answer: Answer) -> Iterator[str]:
    if set(value) != set(answer.detail.conflicts):
        yield f"{key}: expected {_listed(value)}, got {_listed(answer.detail.conflicts)}"


def _no_field(path: object) -> Diagnostic:
    return Diagnostic("TW701", f"there is no field `{path}`", hint=field_hint(str(path)))


def _listed(paths: Iterable[str]) -> str:
    return ", ".join(sorted(paths)) or "none"


# The keys by which a policy test states its expectations (docs/policy-tests.md#gateway).
EXPECTATIONS: Mapping[str, Expectation] = {
    "effective": Expectation(_effective_problems, _effective_differences),
    "conflicts": Expectation(_conflicts_problems, _conflicts_differences),
}
