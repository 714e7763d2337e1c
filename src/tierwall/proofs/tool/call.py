"""Every request that may come on one way of the tool plane, as unknowns (docs/prove.md#what-may-come).

Header values and hosts are printable ASCII, as HTTP has them. The header `Mcp-Name` is left out: where it agrees with
the message it changes nothing, and where it does not, the request is denied as one whose `Mcp-Method` does not agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tierwall.attach.acceptance import ENVIRONMENT
from tierwall.cel.syntax.ast import Expr
from tierwall.logic.cel.encoder import Encoder
from tierwall.logic.cel.language import StringView
from tierwall.logic.cel.open_outcome import OpenOutcomes
from tierwall.logic.cel.terms import Constant, Leaf, LeafComparison, SeenString
from tierwall.logic.cel.unknown import OPAQUE, STRING, Element, Shape, Unknown, UnknownWorld, ValueKind
from tierwall.logic.cel.values import Values
from tierwall.logic.circuit import FALSE
from tierwall.logic.solver import CircuitSolver
from tierwall.logic.unsupported import Unsupported
from tierwall.proofs.tested_set import in_set
from tierwall.proofs.tool.region import ToolRegion
from tierwall.proofs.value_set import SetForm, ValueSet
from tierwall.tool.protocol import (
    ANSWER,
    BY_URI,
    CALL,
    COMPLETE,
    LISTEN,
    METHOD_HEADER,
    MUST_HAVE_NAME,
    NAME_HEADER,
    NEWEST,
    SUBSCRIBE,
    VERSION_HEADER,
)
from tierwall.tool.request import SESSION_HEADER, Backend

# `rules.is_spiffe_id` without its limit on the length: segments that are not `.` or `..`.
_SPIFFE = r"spiffe://[a-z0-9._-]+(/(\.{0,2}[A-Za-z0-9_-][A-Za-z0-9._-]*|\.{3}[A-Za-z0-9._-]*))*"
_JSON = r"(?:[\t-\r ]*[aA][pP][pP][lL][iI][cC][aA][tT][iI][oO][nN]/[jJ][sS][oO][nN][\t-\r ]*)(;.*)?"
_HEADER_VALUE = Shape((ValueKind.STRING,), pattern=r"[\t -~]*")
_OPTIONAL = Shape((ValueKind.NULL, ValueKind.STRING))
_MCP = Shape((ValueKind.MAP,), fields={"tool_name": STRING, "arguments": Shape((ValueKind.MAP,))}, is_closed=True)
_REQUEST = Shape(
    (ValueKind.MAP,),
    fields={
        "method": Shape((ValueKind.STRING,), pattern="[A-Z]+"),
        "path": Shape((ValueKind.STRING,), pattern="/[!-~]*"),
        "url_path": OPAQUE,
        "headers": Shape((ValueKind.MAP,), inner=_HEADER_VALUE, keys=Shape((ValueKind.STRING,), pattern="[!-@[-~]+")),
        "host": Shape((ValueKind.STRING,), pattern="[!-~]+"),
        "time": OPAQUE,
        "mcp": _MCP,
    },
    is_closed=True,
    required=frozenset(("method", "path", "headers", "mcp")),
)


class UnknownCall:
    """A request in a world, and what holds for every request."""

    def __init__(self, world: UnknownWorld, backend: Backend, port: int, opened: OpenOutcomes | None = None) -> None:
        self.world = world
        self.opened = opened
        self.circuit = world.circuit
        self.comparing = LeafComparison(world)
        self.backend = backend
        self.port = port
        self.caller = world.unknown("caller", Shape((ValueKind.NULL, ValueKind.STRING), pattern=_SPIFFE))
        # The method of JSON-RPC; null for plain HTTP.
        self.method = world.unknown("method", _OPTIONAL)
        self.uri = world.unknown("uri", _OPTIONAL)
        self.request = world.unknown("request", _REQUEST)
        mcp = _present(self.request, "mcp").value
        self.tool = _present(mcp, "tool_name")
        self.path = _present(self.request, "path").value
        self.http_method = _present(self.request, "method").value
        self.headers = _present(self.request, "headers").value
        self.host = _present(self.request, "host")
        variables: dict[str, Leaf] = {
            "request": self.request,
            "request.url_path": SeenString(self.path, StringView.URL_PATH),
        }
        self._encoder = Encoder(world, ENVIRONMENT, variables, opened)
        self.circuit.require(-self._header(NAME_HEADER).present)
        self.unreadable = self._unreadable()

    def usual(self) -> list[int]:
        """Return literals of requests as clients send them: people can read them, and Envoy can be asked.

        It has to be called while the question is written down, after everything that looks at headers.
        """
        implies, is_rpc = self.circuit.implies, self.method.is_kind(ValueKind.STRING)
        is_post, calls = self._equals(self.http_method, "POST"), self.method_in((CALL,))
        texts = [(self.tool.present, self.tool.value), (self.uri.is_kind(ValueKind.STRING), self.uri)]
        texts += [(header.present, header.value) for header in self.headers.fields.values()]
        return [
            # Where there are policies, nothing but messages can be posted.
            implies(is_post, is_rpc),
            is_post,
            self._equals(self.path, self.backend.path),
            implies(is_rpc, calls),
            implies(calls, self.tool.present),
            *(implies(present, -self._equals(value, "")) for present, value in texts),
            # Every request has a host, but it matters only where somebody asks about it.
            *([self.host.present] if self.host.value.languages else []),
        ]

    def is_true(self, expression: Expr, place: str) -> int:
        """Return whether an expression is true; `place` says where it stands."""
        if self.opened is None:
            return self._encoder.rails(expression).true
        with self.opened.described(lambda error: f"{error.construct} in {place}"):
            return self._encoder.rails(expression).true

    def header(self, name: str) -> Element:
        """Return a header by its name in lower case."""
        if name == NAME_HEADER:
            raise Unsupported(f"header `{NAME_HEADER}`")
        return self._header(name)

    def has_url_path(self, language: int) -> int:
        """Return whether the path without its query is in a language."""
        return self.path.in_language(self.world.languages.before(language, StringView.URL_PATH))

    def is_session_http(self) -> int:
        """`methods.is_session_http`."""
        at_backend = self.has_url_path(self.world.languages.constant(self.backend.path))
        ends = self.circuit.all_of((self._equals(self.http_method, "DELETE"), self._header(SESSION_HEADER).present))
        return self.circuit.all_of((at_backend, self.circuit.any_of((self._equals(self.http_method, "GET"), ends))))

    def method_in(self, methods: Iterable[str]) -> int:
        """Return whether the method is one of these."""
        language = self.world.languages.one_of(sorted(methods))
        return self.circuit.all_of((self.method.is_kind(ValueKind.STRING), self.method.in_language(language)))

    def method_starts(self, prefix: str) -> int:
        """Return whether the method begins so."""
        language = self.world.languages.starting_with(prefix)
        return self.circuit.all_of((self.method.is_kind(ValueKind.STRING), self.method.in_language(language)))

    def tool_in(self, names: Iterable[str]) -> int:
        """Return whether there is a tool, and its name is one of these."""
        language = self.world.languages.one_of(sorted(names))
        return self.circuit.all_of((self.tool.present, self.tool.value.in_language(language)))

    def uri_in(self, names: Iterable[str]) -> int:
        """Return whether there is a URI, and it is one of these."""
        language = self.world.languages.one_of(sorted(names))
        return self.circuit.all_of((self.uri.is_kind(ValueKind.STRING), self.uri.in_language(language)))

    def within(self, region: ToolRegion) -> list[int]:
        """Return the literals that say that the request is in a region."""
        literals = []
        if region.caller is not None:
            anonymous = self.caller.is_kind(ValueKind.NULL)
            is_nobody = region.caller == ValueSet(SetForm.IN, ())
            literals.append(anonymous if is_nobody else self._in_optional(-anonymous, self.caller, region.caller))
        parts = {
            "method": (self.method.is_kind(ValueKind.STRING), self.method),
            "tool": (self.tool.present, self.tool.value),
        }
        parts["uri"] = self.uri.is_kind(ValueKind.STRING), self.uri
        literals += [self._in_optional(*parts[key], values) for key, values in region.names.items()]
        for key, values in region.http.items():
            if key == "host":
                literals.append(self._in_optional(self.host.present, self.host.value, values))
            else:
                literals.append(in_set(self.http_method if key == "method" else self.path, values))
        for name, values in region.headers.items():
            header = self.header(name)
            literals.append(self._in_optional(header.present, header.value, values))
        return literals if region.where is None else [*literals, self.is_true(region.where, "`where`")]

    def question(self, values: Values, model: CircuitSolver) -> dict[str, Any]:
        """Return the keys of the question that a model stands for."""
        request = values.value(self.request, model)
        mcp = request["mcp"]
        # What questions take for granted.
        usual = {"method": "POST", "path": self.backend.path}
        http = {key: request[key] for key in ("method", "path") if request[key] != usual[key]}
        http |= {key: request[key] for key in ("host", "headers") if request.get(key)}
        return {
            "caller": values.value(self.caller, model),
            "method": values.value(self.method, model),
            "tool": mcp.get("tool_name"),
            "uri": values.value(self.uri, model),
            "arguments": mcp.get("arguments"),
            "http": http or None,
        }

    def _in_optional(self, present: int, unknown: Unknown, values: ValueSet) -> int:
        """Return whether a part that may be missing is in a set: what excludes values lets it be missing."""
        test = in_set(unknown, values)
        if values.form is SetForm.NOT:
            return self.circuit.any_of((-present, test))
        return self.circuit.all_of((present, test))

    def _header(self, name: str) -> Element:
        return _present(self.headers, name)

    def _equals(self, unknown: Unknown, text: str) -> int:
        return self.comparing.equal(unknown, Constant(text))

    def _unreadable(self) -> int:
        """`request._unreadable`, without `Mcp-Name`."""
        any_of, all_of, languages = self.circuit.any_of, self.circuit.all_of, self.world.languages
        is_rpc = self.method.is_kind(ValueKind.STRING)
        content = self._header("content-type")
        version = self._header(VERSION_HEADER)
        said = self._header(METHOD_HEADER)
        json = content.value.in_language(languages.matching(_JSON, whole=True))
        several = any_of(version.value.in_language(languages.containing(char)) for char in ", ")
        differs = all_of((said.present, -self.comparing.equal(said.value, self.method)))
        by_uri = self.method_in(BY_URI)
        named = any_of(
            (
                all_of((by_uri, self.uri.is_kind(ValueKind.STRING), -self._equals(self.uri, ""))),
                all_of((-by_uri, self.tool.present, -self._equals(self.tool.value, ""))),
            )
        )
        nameless = all_of((self._equals(version.value, NEWEST), self.method_in(MUST_HAVE_NAME), -named))
        return all_of(
            (
                is_rpc,
                any_of(
                    (
                        self._equals(self.method, ANSWER),
                        all_of((content.present, -json)),
                        all_of((version.present, any_of((several, nameless)))),
                        differs,
                    )
                ),
            )
        )


class JudgedRequest:
    """A request as rules judge it, or what a completion is about: one method, and the name that it has."""

    def __init__(self, call: UnknownCall, method: str | None = None) -> None:
        self._call = call
        self._method = method
        circuit = call.circuit
        # A subscription to resources is judged as one of resources.
        self._subscribes = circuit.all_of((call.method_in((LISTEN,)), call.uri.is_kind(ValueKind.STRING)))

    @property
    def is_rpc(self) -> int:
        """Whether there is a method at all."""
        return self._call.method.is_kind(ValueKind.STRING)

    def is_method(self, name: str) -> int:
        """Whether the message has this method."""
        if self._method is not None:
            return -FALSE if self._method == name else FALSE
        return self._call.method_in((name,))

    def judged_in(self, names: Iterable[str]) -> int:
        """Whether the method that rules judge is one of these."""
        known = set(names)
        if self._method is not None:
            return -FALSE if self._method in known else FALSE
        subscribes = -FALSE if SUBSCRIBE in known else FALSE
        return self._call.circuit.choose(self._subscribes, subscribes, self._call.method_in(known))

    def judged_starts(self, prefix: str) -> int:
        """Whether the method that rules judge begins so."""
        if self._method is not None:
            return -FALSE if self._method.startswith(prefix) else FALSE
        subscribes = -FALSE if SUBSCRIBE.startswith(prefix) else FALSE
        return self._call.circuit.choose(self._subscribes, subscribes, self._call.method_starts(prefix))

    def named_in(self, names: Iterable[str]) -> int:
        """Whether the object of the method has one of these names."""
        call, known = self._call, set(names)
        by_tool, by_uri = call.tool_in(known), call.uri_in(known)
        if self._method is not None:
            return by_uri if self._method in BY_URI else by_tool
        completes = call.method_in((COMPLETE,))
        has_uri = call.circuit.choose(completes, call.uri.is_kind(ValueKind.STRING), self.judged_in(BY_URI))
        return call.circuit.choose(has_uri, by_uri, by_tool)


def _present(parent: Unknown, name: str) -> Element:
    element = parent.field(name)
    assert element is not None, f"there may be a field {name}"
    return element
