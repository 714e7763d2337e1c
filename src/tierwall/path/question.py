"""Questions about a path: may this pod's agent make this call, all planes considered (docs/path.md)?

Three hops: the pod opens a connection to the Gateway's pods, the Gateway lets the call through, and its pods open a
connection to the backend's pods. The verdict is that of the first hop that is neither Allow nor NotApplicable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from msgspec import field

from tierwall.core.answer import DEFAULT, Answer, Decider, unique_deciders
from tierwall.core.diagnostics import Diagnostic, unknown_keys
from tierwall.core.expectation import Expectation, malformed_expectation, mismatches
from tierwall.core.labels import Selector, SelectorError
from tierwall.core.question import Question
from tierwall.core.verdict import StepVerdict, Verdict
from tierwall.core.words import as_given, join_names
from tierwall.network.ends import OUTSIDE, EndFinder
from tierwall.network.model.endpoints import Endpoint
from tierwall.network.model.model import network_model
from tierwall.network.question import EXPECTATIONS as NETWORK_EXPECTATIONS
from tierwall.network.question import NetworkQuestion
from tierwall.path.backend_endpoint import TCP, backend_endpoint
from tierwall.path.connections import PathConnections
from tierwall.path.detail import PathDetail
from tierwall.path.gateway_pods import PodSelection, gateway_pods
from tierwall.path.sentence import sentence
from tierwall.path.service_account import service_account
from tierwall.resources.finder import ResourceFinder
from tierwall.resources.gaps import joined
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.protocol import CALL
from tierwall.tool.question import EXPECTATIONS as TOOL_EXPECTATIONS
from tierwall.tool.question import ToolQuestion, decide_call
from tierwall.tool.sentence import describe_call, reason
from tierwall.tool.ways import backend_named
from tierwall.values.addresses import parse_address

SOURCES = "`namespace/pod` or a workload such as `Deployment/namespace/name`"
GATEWAY_PODS_KEYS = ("namespace", "selector")
# The fields that a question about a tool has as well, without the caller, who is known.
_OF_CALL = ("gateway", "listener", "backend", "tool", "uri", "arguments", "http", "external_auth", "time")


class PathQuestion(Question, frozen=True, kw_only=True):
    """May this pod, under its own ServiceAccount, make this call through this Gateway, all planes considered?"""

    plane: ClassVar[str] = "path"
    names: ClassVar[tuple[str, ...]] = ("source", "gateway", "backend")

    source: str | None = field(name="from", default=None)
    gateway: str | None = None
    listener: str | None = None
    backend: str | None = None
    # `tools/call` if a tool is given; otherwise None is plain HTTP.
    method: str | None = None
    tool: str | None = None
    uri: str | None = None
    arguments: Mapping[str, Any] | None = None
    http: Mapping[str, Any] | None = None
    external_auth: Mapping[str, str] | None = None
    time: str | None = None
    # `{namespace, selector}`, for pods that do not carry the label of their Gateway.
    gateway_pods: Mapping[str, Any] | None = None

    @staticmethod
    def full_name(name: object, namespace: str) -> object:
        """Put a namespace into a name that has none. `outside` and addresses are not names."""
        return NetworkQuestion.full_name(name, namespace)


def _hop_problems(key: str, value: Any) -> Iterator[Diagnostic]:
    if not isinstance(value, list) or not all(isinstance(entry, str | Mapping) for entry in value):
        yield malformed_expectation(key, "a list of verdicts, or of what is expected of each hop,", value)


def _hop_differences(key: str, value: Any, answer: Answer) -> Iterator[str]:
    hops = answer.detail.hops
    if len(value) != len(hops):
        yield f"{key}: expected {len(value)} hops, got {len(hops)}"
    for number, (wanted, hop) in enumerate(zip(value, hops, strict=False)):
        expect = {"verdict": wanted} if isinstance(wanted, str) else dict(wanted)
        verdict = expect.pop("verdict", hop.verdict)
        if verdict != hop.verdict:
            yield f"{key}[{number}].verdict: expected {verdict}, got {hop.verdict}"
        # A connection that was not judged has nothing but a verdict.
        if expect and hop.detail is None:
            yield f"{key}[{number}]: expected {', '.join(expect)}, got {hop.verdict}"
        elif expect:
            known = NETWORK_EXPECTATIONS if hop.plane == NetworkQuestion.plane else TOOL_EXPECTATIONS
            yield from (f"{key}[{number}].{line}" for line in mismatches(expect, hop, known))


QUESTION = PathQuestion
EXPECTATIONS: Mapping[str, Expectation] = {"hops": Expectation(_hop_problems, _hop_differences)}


def ask(snapshot: Snapshot, question: PathQuestion, problems: Iterable[Diagnostic] = ()) -> Answer:
    """Answer a question. InputError holds every problem with it, after the `problems` that the caller found."""
    noticed = list(problems)
    caller = _caller(snapshot, question.source, noticed)
    given = _gateway_pods(snapshot, question, noticed)
    fields = {name: getattr(question, name) for name in _OF_CALL}
    method = CALL if question.method is None and question.tool is not None else question.method
    call = ToolQuestion(**fields, method=method, caller={"serviceAccount": caller or "default/default"})
    way, decision, judged = decide_call(snapshot, call, noticed)
    backend = backend_named(ResourceFinder(snapshot, []), question.backend)
    assert backend is not None, "the tool plane has found it"
    pods = gateway_pods(snapshot, way.gateway) if given is None else given
    end = backend_endpoint(snapshot, backend, way.gateway, decision.request.target)
    connections = PathConnections(snapshot, str(question.source), way.gateway, way.listener, pods, end)
    hops = (connections.to_gateway(), judged, connections.to_backend(way.backend.reference))
    stop = next((hop for hop in hops if hop.verdict not in (Verdict.ALLOW, StepVerdict.NOT_APPLICABLE)), None)
    return Answer(
        plane=PathQuestion.plane,
        verdict=Verdict.ALLOW if stop is None else stop.verdict,
        sentence=sentence(str(question.source), describe_call(way, decision.request), hops, stop, reason(decision)),
        decided_by=_deciders(hops) if stop is None else stop.decided_by,
        steps=tuple(step for hop in hops for step in hop.steps),
        detail=PathDetail(
            hops,
            str(question.source),
            f"ServiceAccount/{caller}",
            way.gateway.reference,
            way.backend.reference,
            tuple(map(str, pods)),
            str(end.service or end.host or ""),
        ),
        not_considered=joined(omission for hop in hops for omission in hop.not_considered),
    )


def _deciders(hops: Iterable[Answer]) -> tuple[Decider, ...]:
    """Return the policies that allow a path; `Default` only if no policy does."""
    return unique_deciders(decider for hop in hops for decider in hop.decided_by if decider != DEFAULT)


def _caller(snapshot: Snapshot, source: object, problems: list[Diagnostic]) -> str | None:
    """Return the ServiceAccount of a pod, or of all pods of a workload, as `namespace/name`."""
    if not isinstance(source, str) or _is_no_pod(source):
        problems.append(Diagnostic("TW703", f"expected {SOURCES} as `from`, found {as_given(source)}"))
        return None
    asked = EndFinder(snapshot, network_model(snapshot), problems).find(source, "from", TCP, 0)
    if asked is None:
        return None
    accounts = sorted({service_account(snapshot, pod) for group in asked.groups for pod in group.members})
    if len(accounts) > 1:
        message = f"the pods of {asked.name} run under several ServiceAccounts: {join_names(accounts, None)}"
        problems.append(Diagnostic("TW703", message, hint="ask about one of the pods"))
    return accounts[0]


def _is_no_pod(source: str) -> bool:
    return source == OUTSIDE or source.startswith("Service/") or parse_address(source) is not None


def _gateway_pods(
    snapshot: Snapshot, question: PathQuestion, problems: list[Diagnostic]
) -> tuple[Endpoint, ...] | None:
    """Return the pods that `gatewayPods` selects, or None if it is not given."""
    given: object = question.gateway_pods
    if given is None:
        return None
    if not isinstance(given, Mapping):
        problems.append(
            Diagnostic("TW703", f"expected {{namespace, selector}} as `gatewayPods`, found {as_given(given)}")
        )
        return ()
    problems += unknown_keys("TW703", given, GATEWAY_PODS_KEYS, "`gatewayPods`")
    namespace = given.get("namespace")
    if namespace is None and isinstance(question.gateway, str):
        namespace = question.gateway.partition("/")[0]
    if not isinstance(namespace, str) or not namespace:
        message = f"expected the name of a namespace as `gatewayPods.namespace`, found {as_given(namespace)}"
        problems.append(Diagnostic("TW703", message))
        return ()
    try:
        selection = PodSelection(namespace, Selector.parse(given.get("selector")))
    except SelectorError as error:
        place = ".".join(("gatewayPods", "selector", *map(str, error.path)))
        problems.append(Diagnostic("TW703", f"{error} in `{place}`"))
        return ()
    pods = selection.pods(snapshot)
    if not pods:
        problems.append(Diagnostic("TW703", f"`gatewayPods` selects none of {selection}"))
    return pods
