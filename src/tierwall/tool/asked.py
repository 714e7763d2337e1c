"""Reading a tool question: every key checked, every problem named at once (docs/policy-tests.md#tool).

`time` is an addition: an RFC 3339 time for expressions that use `request.time`, which is unknown without it, because a
decision never looks at a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tierwall.attach.index import ACCESS_POLICIES
from tierwall.cel.failure import Failure
from tierwall.cel.library.time import parse_timestamp
from tierwall.core.diagnostics import Diagnostic, InputError, input_error, near_miss, no_such_name, unknown_keys
from tierwall.core.verdict import Verdict
from tierwall.resources.once import per_snapshot
from tierwall.resources.snapshot import Snapshot
from tierwall.tool.decide import Answers
from tierwall.tool.places import Way, problem, way
from tierwall.tool.request import Request, request
from tierwall.tool.sources import is_spiffe_id, service_account_id

KEYS = (
    "gateway",
    "listener",
    "backend",
    "caller",
    "method",
    "tool",
    "uri",
    "arguments",
    "http",
    "externalAuth",
    "time",
)
HTTP_KEYS = ("method", "path", "host", "headers")


def read(snapshot: Snapshot, question: Mapping[str, Any]) -> tuple[Way, Request, Answers]:
    """The way, the request on it, and what authorizers say; InputError lists all that is wrong."""
    problems = unknown_keys("TW703", question, KEYS, "a tool question")
    found = way(snapshot, question.get("gateway"), question.get("listener"), question.get("backend"), problems)
    caller = _caller(question.get("caller"), problems)
    method, tool, uri = (_text(question, key, problems) for key in ("method", "tool", "uri"))
    arguments = question.get("arguments")
    if arguments is not None and not isinstance(arguments, Mapping):
        problems.append(problem(f"expected a map as `arguments`, found `{arguments}`"))
    http = question.get("http")
    http = {} if http is None else http
    if not isinstance(http, Mapping):
        problems.append(problem(f"expected a map as `http`, found `{http}`"))
        http = {}
    problems += unknown_keys("TW703", http, HTTP_KEYS, "`http`")
    http_method, path, host = (_text(http, key, problems, "http.") for key in ("method", "path", "host"))
    headers = _headers(http.get("headers"), problems)
    time = _time(question.get("time"), problems)
    answers = _answers(snapshot, question.get("externalAuth"), problems)
    if problems or found is None:
        raise input_error(problems)
    port = found.listener.port if found.listener is not None else 0
    http_method = "POST" if http_method is None else http_method
    asked = request(found.backend, caller, method, tool, uri, arguments, http_method, path, host, headers, port, time)
    return found, asked, answers


def caller_of(value: object) -> str | None:
    """The SPIFFE id that `caller` names, None for none; InputError if it is malformed."""
    problems: list[Diagnostic] = []
    found = _caller(value, problems)
    if problems:
        raise InputError(problems)
    return found


def _caller(value: object, problems: list[Diagnostic]) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        if not is_spiffe_id(value):
            form = "a SPIFFE id such as `spiffe://cluster.local/ns/shop/sa/agent`"
            hint = "a ServiceAccount is {serviceAccount: namespace/name}" if value.count("/") == 1 else ""
            problems.append(problem(f"expected {form} as `caller`, found `{value}`", hint))
        return value
    account = value.get("serviceAccount") if isinstance(value, Mapping) and len(value) == 1 else None
    if isinstance(account, str) and account.count("/") == 1 and all(account.split("/")):
        namespace, _, name = account.partition("/")
        return service_account_id(namespace, name)
    found = value if account is None else account
    problems.append(problem(f"expected a SPIFFE id or {{serviceAccount: namespace/name}} as `caller`, found `{found}`"))
    return None


def _text(value: Mapping[str, Any], key: str, problems: list[Diagnostic], lead: str = "") -> str | None:
    found = value.get(key)
    if found is None or isinstance(found, str):
        return found
    problems.append(problem(f"expected a text as `{lead}{key}`, found `{found}`"))
    return None


def _headers(value: object, problems: list[Diagnostic]) -> dict[str, str]:
    out: dict[str, str] = {}
    if value is None:
        return out
    if not isinstance(value, Mapping):
        problems.append(problem(f"expected a map as `http.headers`, found `{value}`"))
        return out
    for name, text in value.items():
        if type(text) is int:  # a number that YAML read as one; on the wire every header is a text
            text = str(text)
        if not isinstance(name, str) or not isinstance(text, str):
            problems.append(problem(f"expected a text as header `{name}`, found `{text}`"))
        elif name.lower() in out:
            problems.append(problem(f"header `{name.lower()}` is given twice"))
        else:
            out[name.lower()] = text
    return out


def _time(value: object, problems: list[Diagnostic]) -> object:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return parse_timestamp(value)
    except Failure:
        pass
    problems.append(problem(f"expected an RFC 3339 time as `time`, found `{value}`"))
    return None


def _answers(snapshot: Snapshot, value: object, problems: list[Diagnostic]) -> Answers:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        problems.append(problem(f"expected a map from policies to Allow or Deny as `externalAuth`, found `{value}`"))
        return {}
    out: dict[str, Verdict] = {}
    known = _policies(snapshot)
    for policy, word in value.items():
        if policy not in known:
            problems.append(no_such_name(f"there is no policy `{policy}`", near_miss(str(policy), known)))
        if word not in ("Allow", "Deny"):
            hint = near_miss(str(word), ("Allow", "Deny"))
            problems.append(problem(f"expected Allow or Deny as answer for `{policy}`, found `{word}`", hint))
        else:
            out[policy] = Verdict(word)
    return out


@per_snapshot
def _policies(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(str(one.reference) for kind in ACCESS_POLICIES for one in snapshot.of_kind(*kind))
