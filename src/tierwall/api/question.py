"""Questions to the api plane, and their answers (docs/policy-tests.md#api).

A question is taken literally: a missing attribute is empty (docs/semantics.md#missing-attributes-are-empty).
`resource_names.resolve` completes a question that is written as for kubectl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from msgspec import UNSET, UnsetType, structs

from tierwall.api.algebra.request import Attributes, ConditionData, ConditionsMode, hashable_extra
from tierwall.api.authorizers.cel_policies import asks_authorizers
from tierwall.api.decide import TwoPhaseDecision, decide
from tierwall.api.detail import EXPECTATIONS, ApiDetail, AuthorizerOpinion, authorizer_opinions
from tierwall.api.model import AuthorizerType, chain_of, chain_with_answers, configured_authorizers
from tierwall.api.reads.selectable import selectable_fields
from tierwall.api.resource_names import expand_short_name, is_cluster_scoped, may_be_custom
from tierwall.api.sentence import sentence
from tierwall.core.answer import Answer, Decider, Omission, unique_deciders
from tierwall.core.diagnostics import Diagnostic, input_error, near_miss
from tierwall.core.labels import Requirement
from tierwall.core.question import Question
from tierwall.core.verdict import Verdict
from tierwall.core.words import as_given
from tierwall.resources.foreign import omissions
from tierwall.resources.snapshot import Snapshot

if TYPE_CHECKING:
    from tierwall.api.reads.decision import WidestSelectors

__all__ = ["EXPECTATIONS", "QUESTION", "ApiQuestion", "answer", "ask", "attributes_of", "data_of"]

T = TypeVar("T")

_STRINGS = ("user", "uid", "verb", "group", "version", "resource", "subresource", "namespace", "name", "path")
# Fields that cannot stand beside `path`.
_RESOURCE_FIELDS = ("group", "version", "resource", "subresource", "namespace", "name")
_DATA = ("operation", "object", "old_object", "options", "namespace_object", "impersonated_request")


class ApiQuestion(Question, frozen=True, kw_only=True):
    """May this user do this? The second phase is evaluated if any data is given, even null."""

    plane: ClassVar[str] = "api"

    user: str = ""
    groups: Sequence[str] = ()
    uid: str = ""
    extra: Mapping[str, Sequence[str]] | None = None
    verb: str = ""
    # None is asked as the empty string; only `resource_names.resolve` tells the two apart.
    group: str | None = None
    version: str | None = None
    resource: str = ""
    subresource: str | None = None
    namespace: str = ""
    name: str = ""
    path: str = ""
    label_selector: Sequence[Mapping[str, Any]] | None = None
    field_selector: Sequence[Mapping[str, Any]] | None = None
    conditions: str = str(ConditionsMode.HUMAN_READABLE)
    # What webhooks of the chain answer, by name; others cannot be reached.
    webhooks: Mapping[str, str] | None = None
    operation: str | UnsetType | None = UNSET
    object: Any = UNSET
    old_object: Any = UNSET
    options: Any = UNSET
    namespace_object: Any = UNSET
    impersonated_request: Any = UNSET

    @property
    def has_data(self) -> bool:
        """Whether the question gives data for the second phase."""
        return any(getattr(self, field) is not UNSET for field in _DATA)


QUESTION = ApiQuestion
WEBHOOK_ANSWERS = tuple(map(str, (Verdict.ALLOW, Verdict.DENY, Verdict.NO_OPINION)))
# What admission sees, once an authorizer has allowed it.
_ADMITTED = frozenset({"create", "update", "patch", "delete", "deletecollection", "connect", "*"})
# Whatever the verb, a request for one of these connects.
_CONNECTING = frozenset({"exec", "attach", "portforward", "proxy"})
_MAY_ALLOW = (Verdict.ALLOW, Verdict.CONDITIONAL)
_KEYS = dict(zip(ApiQuestion.__struct_fields__, ApiQuestion.keys(), strict=True))


def ask(snapshot: Snapshot, question: ApiQuestion, problems: Iterable[Diagnostic] = ()) -> Answer:
    """Answer a question. InputError holds every problem with it, after the `problems` that the caller found."""
    all_problems = list(problems)
    attributes = _attributes_in(snapshot, question, all_problems)
    data = data_of(question, attributes, all_problems)
    answers = _webhook_answers(snapshot, question.webhooks, all_problems)
    if all_problems:
        raise input_error(all_problems)
    chain = chain_with_answers(snapshot, answers) if answers else chain_of(snapshot)
    decided = answer(decide(chain, attributes, data, selectable_fields(snapshot)))
    left_out = _omissions(snapshot, attributes, decided)
    return structs.replace(decided, not_considered=left_out) if left_out else decided


def _webhook_answers(snapshot: Snapshot, given: object, problems: list[Diagnostic]) -> dict[str, Verdict]:
    if not given:
        return {}
    if not isinstance(given, Mapping):
        problems.append(_problem("webhooks", "a map from names of webhooks to their answers", given))
        return {}
    names = [member.name for member in configured_authorizers(snapshot) if member.type is AuthorizerType.WEBHOOK]
    answers: dict[str, Verdict] = {}
    for name, word in given.items():
        if name not in names:
            known = ", ".join(f"`{known}`" for known in names) or "none in the chain"
            hint = near_miss(str(name), names)
            problems.append(
                Diagnostic(
                    "TW703", f"expected the name of a webhook in `webhooks` ({known}), found `{name}`", hint=hint
                )
            )
        elif word not in WEBHOOK_ANSWERS:
            expected = f"one of {', '.join(WEBHOOK_ANSWERS)}"
            problems.append(_problem(f"webhooks.{name}", expected, word))
        else:
            answers[name] = Verdict(word)
    return answers


def widest(snapshot: Snapshot, question: ApiQuestion) -> WidestSelectors:
    """Find the widest selectors with which a request about a collection is allowed."""
    from tierwall.api.reads.decision import widest_selectors

    problems: list[Diagnostic] = []
    attributes = _attributes_in(snapshot, question, problems)
    if not attributes.is_about_a_collection:
        expected = "list, watch or deletecollection of a resource without subresource"
        problems.append(Diagnostic("TW703", f"expected {expected}, found {attributes.sentence()}"))
    answers = _webhook_answers(snapshot, question.webhooks, problems)
    if problems:
        raise input_error(problems)
    chain = chain_with_answers(snapshot, answers) if answers else chain_of(snapshot)
    return widest_selectors(chain, attributes, selectable_fields(snapshot))


def _attributes_in(snapshot: Snapshot, question: ApiQuestion, problems: list[Diagnostic]) -> Attributes:
    """Read the request that a question asks about, with the resource by any of its names."""
    attributes = attributes_of(question, problems)
    if not problems and (expanded := expand_short_name(snapshot, question)) is not question:
        attributes = attributes_of(expanded, problems)
    return attributes


def _omissions(snapshot: Snapshot, attributes: Attributes, decided: Answer) -> tuple[Omission, ...]:
    is_admitted = attributes.verb in _ADMITTED or attributes.subresource in _CONNECTING
    return omissions(
        snapshot,
        "api",
        (attributes.namespace,),
        is_admitted=is_admitted and not attributes.path and decided.verdict in _MAY_ALLOW,
        is_about_pods=attributes.resource in ("pods", "*"),
        # Otherwise the question leaves open in which one, and admission may refuse it there.
        in_any_namespace=not attributes.namespace
        and not is_cluster_scoped(snapshot, attributes.group, attributes.resource),
        needs_definitions=may_be_custom(attributes.resource),
        asks_elsewhere=bool(snapshot.unlisted) and asks_authorizers(snapshot),
    )


def answer(decision: TwoPhaseDecision) -> Answer:
    """Turn a decision into the answer that every plane gives."""
    detail = ApiDetail(
        final=decision.final.verdict if decision.final is not None else None,
        condition_sets=authorizer_opinions(decision.entries),
        called=decision.called,
        error=bool(decision.error),
        evaluation_error=decision.error,
        reason=decision.last.reason,
        impersonation=decision.impersonation.verdict if decision.impersonation is not None else None,
        impersonation_sets=_impersonation_sets(decision),
        suggestion=decision.read.suggestion if decision.read is not None else None,
        witness=decision.read.witness if decision.read is not None else None,
    )
    return Answer(
        plane=ApiQuestion.plane,
        verdict=decision.first.verdict,
        sentence=sentence(decision),
        decided_by=unique_deciders(map(Decider, decision.decided_by)),
        steps=decision.steps,
        detail=detail,
    )


def _impersonation_sets(decision: TwoPhaseDecision) -> tuple[AuthorizerOpinion, ...]:
    left = decision.impersonation
    return authorizer_opinions(left.entries) if left is not None and left.is_conditional else ()


def attributes_of(question: ApiQuestion, problems: list[Diagnostic]) -> Attributes:
    """Read the request that a question asks about; every problem with it is added to `problems`."""

    def read(field: str, convert: Callable[[Any], T | None], expected: str) -> T | None:
        value = getattr(question, field)
        if value is None:
            return None
        result = convert(value)
        if result is None:
            problems.append(_problem(_KEYS[field], expected, value))
        return result

    strings = {field: read(field, _string, "a string") or "" for field in _STRINGS}
    mode = _mode(question.conditions)
    if mode is None:
        problems.append(_problem("conditions", '`HumanReadable`, `Optimized` or `""`', question.conditions))
    clash = next((field for field in _RESOURCE_FIELDS if strings[field]), None)
    if strings["path"] and clash is not None:
        message = f"expected no `{clash}` beside `path`, which is for non-resource requests"
        problems.append(Diagnostic("TW703", message))
    requirements = "a list of requirements with `key`, `operator` and `values`"
    return Attributes(
        **strings,
        groups=read("groups", _strings, "a list of strings") or (),
        extra=read("extra", _extra, "a map from strings to lists of strings") or (),
        is_resource_request=not strings["path"],
        label_selector=read("label_selector", _selector, requirements),
        field_selector=read("field_selector", _selector, requirements),
        conditions_mode=mode if mode is not None else ConditionsMode.HUMAN_READABLE,
    )


def data_of(question: ApiQuestion, requester: Attributes, problems: list[Diagnostic]) -> ConditionData | None:
    """Read the data of the second phase, null where it is not given; None if the question has no data at all."""
    values = {field: None if (value := getattr(question, field)) is UNSET else value for field in _DATA}
    operation = values["operation"]
    if operation is not None and not isinstance(operation, str):
        problems.append(_problem("operation", "a string", operation))
    return ConditionData(**values, requester=requester) if question.has_data else None


def _problem(key: str, expected: str, value: Any) -> Diagnostic:
    return Diagnostic("TW703", f"expected {expected} as `{key}`, found {as_given(value)}")


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _strings(value: Any) -> tuple[str, ...] | None:
    if not isinstance(value, list | tuple) or not all(isinstance(string, str) for string in value):
        return None
    return tuple(value)


def _extra(value: Any) -> tuple[tuple[str, tuple[str, ...]], ...] | None:
    if not isinstance(value, Mapping):
        return None
    if not all(isinstance(key, str) and _strings(values) is not None for key, values in value.items()):
        return None
    return hashable_extra(value)


def _mode(value: Any) -> ConditionsMode | None:
    return next((mode for mode in ConditionsMode if isinstance(value, str) and mode == value), None)


def _selector(value: Any) -> tuple[Requirement, ...] | None:
    if not isinstance(value, list | tuple):
        return None
    requirements: list[Requirement] = []
    for requirement in value:
        if not isinstance(requirement, Mapping):
            return None
        key, operator = requirement.get("key"), requirement.get("operator")
        values = _strings(requirement.get("values") or ())
        if not isinstance(key, str) or not isinstance(operator, str) or values is None:
            return None
        requirements.append(Requirement(key, operator, values))
    return tuple(requirements)
