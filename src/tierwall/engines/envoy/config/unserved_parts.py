"""Parts of routes and backends whose requests are answered with 500: the words of `run`, `check` and `effective`.

Envoy's own packages are not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tierwall.attach.backend import BackendRef
from tierwall.attach.listener import Listener
from tierwall.attach.place import BACKEND, INFERENCE_POOL, MODEL
from tierwall.attach.reach import RouteRule
from tierwall.core.diagnostics import Diagnostic
from tierwall.core.source import Path
from tierwall.engines.envoy.config.agentgateway_backends import HINT
from tierwall.engines.envoy.config.backend_addresses import unserved_part
from tierwall.engines.envoy.config.model_backends import OF_TYPE
from tierwall.resources.resource import Resource
from tierwall.resources.snapshot import KindKey

# Backends that only agentgateway serves, with what to write instead.
NOT_SERVED: Mapping[KindKey, str] = {
    INFERENCE_POOL: "refer to a Service",
    MODEL: "refer to an AgentgatewayBackend with one provider of models",
}
OF_ENVOY = "Envoy does not serve"


class UnservedPart(NamedTuple):
    """A part of a route or a backend whose requests are answered with 500, why, and what to write instead."""

    owner: Resource
    path: Path
    message: str
    hint: str = ""
    # Whether the backend is at fault, whatever route leads to it.
    is_of_backend: bool = False

    def diagnostic(self, code: str) -> Diagnostic:
        """Return the diagnostic of whoever serves the Gateway."""
        return self.owner.diagnostic(code, self.message, self.path, hint=self.hint)

    @property
    def note(self) -> str:
        """The same for those who ask what would happen."""
        return (
            self.message if self.message.startswith(OF_ENVOY) else f"{self.message} where Tierwall serves the Gateway"
        )

    def finding(self, code: str) -> Diagnostic:
        """Return the diagnostic of `check`."""
        return self._replace(message=self.note).diagnostic(code)


def not_served(backend: Resource) -> UnservedPart | None:
    """Return why Envoy serves no requests to a backend, whatever route leads to it; None if it does."""
    key = backend.group, backend.kind
    if key in NOT_SERVED:
        message = f"{OF_ENVOY} {backend.reference}: requests to it are answered with 500"
        return UnservedPart(backend, ("spec",), message, NOT_SERVED[key], is_of_backend=True)
    if key != BACKEND or not (part := unserved_part(backend)):
        return None
    message = f"{OF_ENVOY} {backend.reference}: {part} is not supported; requests to it are answered with 500"
    return UnservedPart(backend, ("spec",), message, HINT, is_of_backend=True)


def refused_backend(ref: BackendRef, unsupported: str, hint: str, problem: str = "") -> UnservedPart:
    """Return the closing of a reference to a backend, of which a part is not supported."""
    problem = problem or f"{unsupported} is not supported"
    return UnservedPart(ref.route, ref.path, f"{problem}: requests to {ref.place} are answered with 500", hint)


def refused_rule(route: Resource, problem: str, hint: str, effect: str = "") -> UnservedPart:
    """Return the closing of a rule with a part that is not supported."""
    effect = effect or ("answers 500 to it" if problem.startswith(OF_TYPE) else "answers 500")
    return UnservedPart(route, ("spec", "rules"), f"{problem} is not supported: the rule {effect}", hint)


def closed_rule(rule: RouteRule, problem: str) -> UnservedPart:
    """Return the closing of a rule whose settings cannot hold for its backends."""
    return UnservedPart(rule.route, ("spec", "rules", rule.rule), f"{problem}: the rule answers 500")


def of_other_kind(route: Resource, listener: Listener, host: str, first: Resource) -> UnservedPart:
    """Return what is said of a host name that has routes of another kind."""
    message = f"{route.reference} is not served at {listener} for `{host}`: {first.reference} has it"
    hint = "give HTTPRoutes and GRPCRoutes different host names"
    return UnservedPart(route, ("spec", "hostnames"), message, hint)
