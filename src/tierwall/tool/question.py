"""Questions to the tool plane: read every key, report every problem at once, and answer.

docs/policy-tests.md#tool, docs/semantics.md#who-decided-a-request.

`time` is an addition: an RFC 3339 time for expressions that use `request.time`, which is unknown without it, because a
decision never reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from msgspec import structs

from tierwall.attach.target import ACCESS_POLICIES
from tierwall.cel.errors import Failure
from tierwall.cel.library.time import parse_timestamp
from tierwall.core.answer import Answer, Reason, Step, unique_deciders
from tierwall.core.diagnostics import Diagnostic, input_error, near_miss, unknown_keys
from tierwall.core.expectation import list_of_strings, one_of
from tierwall.core.question import Question
from tierwall.core.reference import Reference, full_name
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.core.words import as_given, join_names
from tierwall.resources.finder import ResourceFinder
from tierwall.resources.foreign import omissions
from tierwall.resources.once import per_snapshot
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.decide import AuthorizerAnswers, PolicyEvaluation, ToolDecision, decide
from tierwall.tool.detail import RequestDetail, ToolDetail
from tierwall.tool.joined import BEFORE_NAME, BEFORE_URI, USES, joined_item
from tierwall.tool.model import PolicyLevel
from tierwall.tool.protocol import NAME_HEADER, encoded_name, name_of
from tierwall.tool.request import Backend, ToolRequest, tool_request
from tierwall.tool.rules import EVERY_RULE, is_spiffe_id, service_account_id
from tierwall.tool.sentence import note, sentence
from tierwall.tool.ways import GuardedWay, find_way

HTTP_KEYS = ("method", "path", "host", "headers")
_DENY = StepVerdict.DENY

T = TypeVar("T")


class ToolQuestion(Question, frozen=True, kw_only=True):
    """May this caller use this tool of this backend through this Gateway?"""

    plane: ClassVar[str] = "tool"
    names: ClassVar[tuple[str, ...]] = ("gateway", "backend")

    gateway: str | None = None
    listener: str | None = None
    backend: str | None = None
    # A SPIFFE id, `{serviceAccount: namespace/name}`, or None for a caller without an identity.
    caller: str | Mapping[str, str] | None = None
    method: str | None = None
    tool: str | None = None
    uri: str | None = None
    arguments: Mapping[str, Any] | None = None
    http: Mapping[str, Any] | None = None
    external_auth: Mapping[str, str] | None = None
    time: str | None = None

    def in_namespace(self, namespace: str) -> ToolQuestion:
        """Return this question with a namespace in each name that has none."""
        question = Question.in_namespace(self, namespace)
        caller = full_caller(self.caller, namespace)
        return question if caller == self.caller else structs.replace(question, caller=caller)


def full_caller(caller: T, namespace: str) -> T | dict[str, Any]:
    """Put a namespace into the name of a caller's ServiceAccount that has none."""
    if not isinstance(caller, Mapping) or "serviceAccount" not in caller:
        return caller
    return {**caller, "serviceAccount": full_name(caller["serviceAccount"], namespace)}


QUESTION = ToolQuestion
EXPECTATIONS = {
    "evaluated": list_of_strings("references", lambda answer: map(str, answer.detail.evaluated)),
    "level": one_of(PolicyLevel, lambda answer: answer.detail.level),
}


def ask(snapshot: Snapshot, question: ToolQuestion, problems: Iterable[Diagnostic] = ()) -> Answer:
    """Answer a question. InputError holds every problem with it, after the `problems` that the caller found."""
    return decide_call(snapshot, question, problems)[2]


def decide_call(
    snapshot: Snapshot, question: ToolQuestion, problems: Iterable[Diagnostic] = ()
) -> tuple[GuardedWay, ToolDecision, Answer]:
    """Answer a question as `ask` does, and return the way and the decision too."""
    way, request, external_auth = read_question(snapshot, question, problems)
    namespaces = way.gateway.namespace, way.backend.namespace
    decision = decide(way.stack, request, external_auth)
    decided = answer(way, decision)
    left_out = omissions(snapshot, "tool", namespaces, targets=(way.gateway.reference, way.backend.reference))
    return way, decision, structs.replace(decided, not_considered=left_out) if left_out else decided


def answer(way: GuardedWay, decision: ToolDecision, status: int | None = None) -> Answer:
    """Turn a decision into an answer. The last policy decided on Deny, every evaluated policy on Allow.

    A real proxy answers with a `status` and gives no reasons, so its denials have no notes.
    """
    deciding = decision.evaluated[-1:] if decision.verdict is Verdict.DENY else decision.evaluated
    request = decision.request
    return Answer(
        plane=ToolQuestion.plane,
        verdict=decision.verdict,
        sentence=sentence(way, decision),
        decided_by=unique_deciders(evaluation.decider for evaluation in deciding),
        steps=tuple(_step(evaluation, request if status is None else None) for evaluation in decision.evaluated)
        or (_NO_POLICY,),
        detail=ToolDetail(
            evaluated=tuple(evaluation.policy.reference for evaluation in decision.evaluated),
            level=decision.level,
            request=RequestDetail(
                gateway=way.gateway.reference,
                listener=way.listener.name if way.listener is not None else None,
                backend=way.backend.reference,
                caller=request.caller,
                method=request.method,
                tool=request.tool,
                uri=request.uri,
                http_method=request.http_method,
                path=request.path,
            ),
            status=status,
        ),
    )


_NO_POLICY = Step(
    tier=str(PolicyLevel.DEFAULT), verdict=StepVerdict.ALLOW, reason=Reason.NO_POLICY, note="no policy guards this way"
)


def _step(evaluation: PolicyEvaluation, request: ToolRequest | None) -> Step:
    policy, rule = evaluation.policy, evaluation.rule or EVERY_RULE
    return Step(
        tier=evaluation.level,
        verdict=evaluation.verdict,
        reason=evaluation.reason,
        policy=policy.reference,
        rule=rule.label,
        name=rule.name,
        note=note(evaluation, request) if request is not None and evaluation.verdict is _DENY else None,
        origin=policy.resource,
        path=rule.path,
    )


def read_question(
    snapshot: Snapshot, question: ToolQuestion, problems: Iterable[Diagnostic] = ()
) -> tuple[GuardedWay, ToolRequest, AuthorizerAnswers]:
    """Read the way, the request and the answers of authorizers; InputError holds every problem with the question."""
    finder = ResourceFinder(snapshot, list(problems))
    way = find_way(snapshot, question.gateway, question.listener, question.backend, finder.problems)
    caller = caller_of(question.caller, finder)
    method, tool, uri = (_string(key, getattr(question, key), finder) for key in ("method", "tool", "uri"))
    arguments = _map("arguments", question.arguments, finder)
    http = _map("http", question.http, finder) or {}
    finder.problems += unknown_keys("TW703", http, HTTP_KEYS, "`http`")
    http_method, path, host = (_string(f"http.{key}", http.get(key), finder) for key in ("method", "path", "host"))
    headers = _headers(http.get("headers"), finder)
    time = _time(question.time, finder)
    external_auth = _external_auth(question.external_auth, finder)
    if way is None or finder.problems:
        raise input_error(finder.problems)
    port = way.listener.port if way.listener is not None else 0
    http_method = "POST" if http_method is None else http_method
    backend = way.backend
    item = joined_item(backend.targets, tool, uri) if backend.targets and method in USES else None
    if item is not None:
        said, joined = headers.get(NAME_HEADER), name_of(method or "", tool, uri)
        if said is not None and (joined is None or said != encoded_name(joined)):
            # What says something else is read as it stands.
            item = None
        else:
            # The gateway takes the prefix away before anything else, in `Mcp-Name`, too.
            tool, uri = item.tool, item.uri
            if said is not None:
                headers[NAME_HEADER] = encoded_name(name_of(method or "", tool, uri) or "")
    request = tool_request(backend, caller, method, tool, uri, arguments, http_method, path, host, headers, port, time)
    if item is not None:
        request = structs.replace(request, target=item.target)
    elif backend.targets and (tool is not None or uri is not None):
        request = structs.replace(request, unreadable=request.unreadable or no_server(backend, tool, uri))
    return way, request, external_auth


def no_server(backend: Backend, tool: str | None, uri: str | None) -> str:
    """Say why a name means nothing at a backend that joins servers."""
    name = uri if tool is None else tool
    separator = BEFORE_URI if tool is None else BEFORE_NAME
    known = join_names([f"`{target}{separator}`" for target in backend.targets])
    return f"`{name}` names no server of {backend}: names there begin with {known}"


def caller_of(value: object, finder: ResourceFinder) -> str | None:
    """Read the SPIFFE id of `caller` of a question; None is a caller without an identity."""
    if value is None:
        return None
    if isinstance(value, str):
        if not is_spiffe_id(value):
            form = "a SPIFFE id such as `spiffe://cluster.local/ns/shop/sa/agent`"
            hint = "write a ServiceAccount as {serviceAccount: namespace/name}" if value.count("/") == 1 else ""
            finder.report_invalid(f"expected {form} as `caller`, found {as_given(value)}", hint)
        return value
    account = value.get("serviceAccount") if isinstance(value, Mapping) and len(value) == 1 else None
    if isinstance(account, str) and account.count("/") == 1 and all(account.split("/")):
        namespace, _, name = account.partition("/")
        return service_account_id(namespace, name)
    written = value if account is None else account
    finder.report_invalid(
        f"expected a SPIFFE id or {{serviceAccount: namespace/name}} as `caller`, found {as_given(written)}"
    )
    return None


def _string(key: str, value: object, finder: ResourceFinder) -> str | None:
    if value is None or isinstance(value, str):
        return value
    finder.report_invalid(f"expected a string as `{key}`, found {as_given(value)}")
    return None


def _map(key: str, value: object, finder: ResourceFinder) -> Mapping[Any, Any] | None:
    if value is None or isinstance(value, Mapping):
        return value
    finder.report_invalid(f"expected a map as `{key}`, found {as_given(value)}")
    return None


def _headers(value: object, finder: ResourceFinder) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, text in (_map("http.headers", value, finder) or {}).items():
        if type(text) is int:  # YAML reads digits as a number; on the wire every header is a string
            text = str(text)
        if not isinstance(name, str) or not isinstance(text, str):
            finder.report_invalid(f"expected a string as header `{name}`, found {as_given(text)}")
        elif name.lower() in headers:
            finder.report_invalid(f"header `{name.lower()}` is given twice")
        else:
            headers[name.lower()] = text
    return headers


def _time(value: object, finder: ResourceFinder) -> object:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return parse_timestamp(value)
    except Failure:
        pass
    finder.report_invalid(f"expected an RFC 3339 time as `time`, found {as_given(value)}")
    return None


def _external_auth(value: object, finder: ResourceFinder) -> AuthorizerAnswers:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        finder.report_invalid(
            f"expected a map from policies to Allow or Deny as `externalAuth`, found {as_given(value)}"
        )
        return {}
    known = policies_by_name(finder.snapshot)
    answers: dict[Reference, Verdict] = {}
    for policy, word in value.items():
        if policy not in known:
            finder.report_unknown_reference(f"policy `{policy}`", near_miss(str(policy), known), str(policy))
        if word not in ("Allow", "Deny"):
            hint = near_miss(str(word), ("Allow", "Deny"))
            finder.report_invalid(f"expected Allow or Deny as the answer for `{policy}`, found `{word}`", hint)
        elif policy in known:
            answers[known[policy]] = Verdict(word)
    return answers


@per_snapshot
def policies_by_name(snapshot: Snapshot) -> Mapping[str, Reference]:
    """Return the references of all AccessPolicies by their spelling."""
    references = (resource.reference for kind in ACCESS_POLICIES for resource in snapshot.of_kind(*kind))
    return {str(reference): reference for reference in references}
