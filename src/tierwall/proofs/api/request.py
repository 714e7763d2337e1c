"""Every request that may come to the api plane: its attributes and its data, as unknowns (docs/prove.md#what-may-come).

A request is about a resource or about a path. `object` is null for delete and given otherwise; `oldObject` is null for
create and connect. `request.name` of a create without a name is that of the object. A request that carries no objects
(get, list, watch, paths) has no data at all: what a policy says about `object` there stays open.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tierwall.api.algebra.request import CONNECT_RESOURCES, CONNECT_VERBS, OPERATIONS
from tierwall.api.authorizers.expression import ENVIRONMENT
from tierwall.api.model import AuthorizerConfig
from tierwall.api.question import ApiQuestion
from tierwall.cel.syntax import ast
from tierwall.core.verdict import Verdict
from tierwall.logic.cel.encoder import Encoder, Rails
from tierwall.logic.cel.open_outcome import OpenOutcomes
from tierwall.logic.cel.terms import MISSING, Constant, Leaf, LeafComparison
from tierwall.logic.cel.unknown import STRING, Element, Unknown, UnknownWorld, ValueKind
from tierwall.logic.cel.values import Values
from tierwall.logic.circuit import FALSE
from tierwall.logic.solver import CircuitSolver
from tierwall.proofs.api.object_identity import OBJECTS, identified, require_identities
from tierwall.proofs.api.object_shape import SUBRESOURCES, KnownKind, ShapeWriter, completed, known_kinds
from tierwall.proofs.api.region import ApiRegion
from tierwall.proofs.api.request_shape import DATA, NAME_LABEL, REQUEST, SELECTORS
from tierwall.proofs.tested_set import in_set
from tierwall.resources.snapshot import Snapshot

# The attributes of questions, and where expressions find them.
_ATTRIBUTES = {"verb": "verb", "group": "apiGroup", "version": "apiVersion"}
# Requests that impersonate somebody are not part of proofs: no other has one.
_IMPERSONATED = "impersonatedRequest"
_QUESTION = {"oldObject": "old_object", "namespaceObject": "namespace_object"}


class UnknownRequest:
    """A request in a world, and what holds for every request."""

    def __init__(
        self, world: UnknownWorld, snapshots: tuple[Snapshot, ...], opened: OpenOutcomes | None = None
    ) -> None:
        self.world = world
        self.opened = opened
        self.circuit = world.circuit
        self.comparing = LeafComparison(world)
        self.request = world.unknown("request", REQUEST)
        # The name in the URL: `request.name` is another one where only the object has a name.
        self.name = world.unknown("name", STRING)
        self.data = {name: world.unknown(name, shape) for name, shape in DATA.items()}
        # The labels of the namespaces that exist.
        self._declared = {
            resource.name: {**resource.labels, NAME_LABEL: resource.name}
            for snapshot in snapshots
            for resource in snapshot.of_kind("", "Namespace")
        }
        self._snapshots = snapshots
        self._kinds: list[KnownKind] = []
        self._mentioned: set[str] = set()
        # Answers that nobody knows, and the failure policies of webhooks.
        self._free: dict[str, tuple[int, int]] = {}
        self._webhooks: dict[str, Verdict] = {}
        with_data: dict[str, Leaf] = {"request": self.request, **self.data, _IMPERSONATED: Constant(None)}
        without: dict[str, Leaf] = {"request": self.request, **dict.fromkeys((*self.data, _IMPERSONATED), MISSING)}
        self._with_data = Encoder(world, ENVIRONMENT, with_data, opened)
        self._without_data = Encoder(world, ENVIRONMENT, without, opened)
        self.is_connect = self._connect()
        self.is_about_path = -self.equals("path", "")
        writes = self.one_of("verb", OPERATIONS)
        self.carries_data = self.circuit.all_of((-self.is_about_path, self.circuit.any_of((writes, self.is_connect))))
        self._require_what_holds()
        selectors = (_present(self.request, selector).present for selector in SELECTORS)
        # Selectors of a request about a path or a subresource imply nothing.
        is_collection = -self.is_about_path, self.equals("subresource", "")
        self.selects_objects = self.circuit.all_of((self.circuit.any_of(selectors), *is_collection))
        # No single object tells whether conditions hold: requests carry no object, or select many.
        deletes_many = self.circuit.all_of((self.equals("verb", "deletecollection"), self.selects_objects))
        self.is_left_open = self.circuit.any_of((-self.carries_data, deletes_many))

    @property
    def has_open(self) -> bool:
        """Whether something in the question is open so far."""
        return self.opened is not None and any(True for _ in self.opened)

    def free_answer(self, name: str) -> tuple[int, int]:
        """Return literals for an answer that nobody knows: Allow, and Deny. What has one name has one answer."""
        if name not in self._free:
            self._free[name] = allows, denies = self.circuit.variable(), self.circuit.variable()
            self.circuit.require(-allows, -denies)
        return self._free[name]

    def webhook(self, member: AuthorizerConfig) -> tuple[int, int]:
        """Return the literals that say that a webhook allows and denies."""
        self._webhooks[member.name] = member.failure_policy
        return self.free_answer(f"webhook {member.name}")

    def preferences(self) -> list[int]:
        """Return literals of what readers expect: no connect request, and webhooks that nobody reaches."""
        answers = (literal for name, policy in self._webhooks.items() for literal in self._answers(name, policy))
        return [-self.is_connect, *answers]

    def _answers(self, name: str, verdict: Verdict) -> tuple[int, int]:
        allows, denies = self._free[f"webhook {name}"]
        return -allows, denies if verdict is Verdict.DENY else -denies

    def field(self, name: str) -> Unknown:
        """Return an attribute as expressions name it; `name` is that of the URL."""
        if name == "name":
            return self.name
        parent = self.request
        if name in ("username", "groups", "uid", "extra"):
            parent = _present(self.request, "userInfo").value
        return _present(parent, name).value

    def equals(self, field: str, value: str) -> int:
        """Return whether an attribute is this string."""
        return self.comparing.equal(self.field(field), Constant(value))

    def one_of(self, field: str, values: Iterable[str]) -> int:
        """Return whether an attribute is one of these strings."""
        return self.field(field).in_language(self.world.languages.one_of(sorted(values)))

    def in_group(self, group: str) -> int:
        """Return whether the user is in a group."""
        return self.comparing.is_element(self.field("groups"), Constant(group))

    def rails(self, expression: ast.Expr) -> Rails:
        """Return when an expression is true and false, and when it depends on data that the request does not carry."""
        self._mentioned |= set(ast.names(expression))
        carried, bare = self._with_data.rails(expression), self.without_data(expression)
        if bare is None:
            return carried
        choose, has_data = self.circuit.choose, -self.is_left_open
        return Rails(
            choose(has_data, carried.true, bare.true),
            choose(has_data, carried.false, bare.false),
            self.circuit.all_of((-has_data, bare.missing)),
            self.circuit.all_of((-has_data, bare.missing_true)),
        )

    def without_data(self, expression: ast.Expr) -> Rails | None:
        """Return what an expression comes to where no data is known; None if it reads none."""
        is_about_data = not set(ast.names(expression)).isdisjoint((*DATA, _IMPERSONATED))
        return self._without_data.rails(expression) if is_about_data else None

    def where(self, expression: ast.Expr) -> int:
        """Return whether an expression of a region is true; data that a request does not carry is null in it."""
        self._mentioned |= set(ast.names(expression))
        return self._with_data.rails(expression).true

    def assume(self, expression: ast.Expr) -> None:
        """Let an expression be true of every object that may come."""
        for name in ("object", "oldObject"):
            variables: dict[str, Leaf] = {"request": self.request, **self.data, "object": self.data[name]}
            holds = Encoder(self.world, ENVIRONMENT, variables, self.opened).rails(expression).true
            self.circuit.require(self.data[name].is_kind(ValueKind.NULL), holds)

    def within(self, region: ApiRegion) -> list[int]:
        """Return the literals that say that the request is in a region."""
        literals = [
            in_set(self.field({"user": "username"}.get(key, _ATTRIBUTES.get(key, key))), values)
            for key, values in region.fields.items()
        ]
        literals += [self.in_group(group) for group in region.has_groups]
        literals += [-self.in_group(group) for group in region.lacks_groups]
        return literals if region.where is None else [*literals, self.where(region.where)]

    def finish(self) -> None:
        """Require what holds for objects and namespaces, as far as expressions read them."""
        # What an open expression reads, nobody knows.
        if "name" in self.request.fields or self.has_open:
            self._require_name()
        require_identities(self)
        self._require_shapes()
        if "namespaceObject" not in self._mentioned:
            return
        namespace = self.data["namespaceObject"]
        metadata = _present(namespace, "metadata").value
        name = _present(metadata, "name")
        is_map = namespace.is_kind(ValueKind.MAP)
        self.circuit.require(-is_map, name.present)
        self.circuit.require(-is_map, self.comparing.equal(name.value, self.field("namespace")))
        labels = _present(metadata, "labels")
        if labels.value.is_whole:
            # What looks through all labels sees those that no expression names, too.
            for key in sorted({NAME_LABEL, *(key for declared in self._declared.values() for key in declared)}):
                _present(labels.value, key)
        self.circuit.require(-is_map, labels.present)
        if NAME_LABEL in labels.value.fields:
            label = labels.value.fields[NAME_LABEL]
            self.circuit.require(-is_map, label.present)
            self.circuit.require(-is_map, self.comparing.equal(label.value, self.field("namespace")))
        for known, declared in sorted(self._declared.items()):
            self.circuit.require(-is_map, -self.equals("namespace", known), self._are(labels.value, declared))

    def _require_shapes(self) -> None:
        """Objects of a kind that is known have the shape of its schema."""
        data = [self.data[name] for name in ("object", "oldObject") if name in self._mentioned]
        if not data:
            return
        self._kinds = known_kinds(self._snapshots, self.field("apiGroup"), self.field("resource"))
        for known in self._kinds:
            is_about = self.circuit.all_of(
                (
                    self.equals("apiGroup", known.group),
                    self.equals("resource", known.plural),
                    self.one_of("subresource", SUBRESOURCES),
                )
            )
            stored = known.version("")
            others = [kind for kind in known.versions if kind is not stored]
            of_others = [self.equals("apiVersion", kind.version) for kind in others]
            for kind, literal in zip((stored, *others), (-self.circuit.any_of(of_others), *of_others), strict=True):
                writer = ShapeWriter(self.comparing, self.circuit.all_of((is_about, literal)))
                for unknown in data:
                    writer.object(unknown, kind)

    def _completed(self, value: Any, request: dict[str, Any]) -> Any:
        """Return an object with what its schema requires beside what was asked."""
        key = request["apiGroup"], request["resource"]
        known = next((known for known in self._kinds if (known.group, known.plural) == key), None)
        if known is None or request["subresource"] not in SUBRESOURCES:
            return value
        return completed(value, known.version(request["apiVersion"]).schema)

    def _are(self, labels: Unknown, declared: dict[str, str]) -> int:
        """Return whether labels are those declared, as far as the question can tell."""
        same = [
            self.circuit.all_of((label.present, self.comparing.equal(label.value, Constant(declared[key]))))
            if key in declared
            else -label.present
            for key, label in sorted(labels.fields.items())
        ]
        return self.circuit.all_of([*same, *(-extra.present for extra in labels.extras)])

    def question(self, values: Values, model: CircuitSolver) -> ApiQuestion:
        """Return the question that a model stands for."""
        request = values.value(self.request, model)
        user = request["userInfo"]
        selectors = {
            field: request[key]
            for field, key in (("label_selector", "labelSelector"), ("field_selector", "fieldSelector"))
            if key in request
        }
        data: dict[str, Any] = {}
        if model.is_true(self.carries_data):
            data = {_QUESTION.get(name, name): values.value(unknown, model) for name, unknown in self.data.items()}
            name = values.value(self.name, model)
            for field in OBJECTS if not model.is_true(self.is_connect) else ():
                key = _QUESTION.get(field, field)
                data[key] = self._completed(identified(data[key], field, request, name), request)
            if data["namespace_object"] is not None:
                namespace, metadata = request["namespace"], data["namespace_object"]["metadata"]
                named = metadata.get("labels", {}) | {NAME_LABEL: namespace}
                metadata["labels"] = self._declared.get(namespace, named)
        webhooks: dict[str, str] = {}
        for name, policy in self._webhooks.items():
            allows, denies = map(model.is_true, self._free[f"webhook {name}"])
            answer = Verdict.ALLOW if allows else Verdict.DENY if denies else Verdict.NO_OPINION
            if answer is not policy:
                webhooks[name] = str(answer)
        return ApiQuestion(
            user=user["username"],
            groups=user["groups"],
            uid=user["uid"],
            extra=user["extra"] or None,
            verb=request["verb"],
            group=request["apiGroup"],
            version=request["apiVersion"],
            resource=request["resource"],
            subresource=request["subresource"],
            namespace=request["namespace"],
            name=values.value(self.name, model),
            path=request["path"],
            **selectors,
            **data,
            webhooks=webhooks or None,
        )

    def _connect(self) -> int:
        resources = []
        for combined in sorted(CONNECT_RESOURCES):
            resource, _, subresource = combined.partition("/")
            pair = self.equals("resource", resource), self.equals("subresource", subresource)
            resources.append(self.circuit.all_of(pair))
        return self.circuit.all_of(
            (self.equals("apiGroup", ""), self.one_of("verb", CONNECT_VERBS), self.circuit.any_of(resources))
        )

    def _require_what_holds(self) -> None:
        require, all_of = self.circuit.require, self.circuit.all_of
        about_path = self.is_about_path
        for field in ("apiGroup", "apiVersion", "resource", "subresource", "namespace", "name"):
            require(-about_path, self.equals(field, ""))
        require(about_path, -self.equals("resource", ""))
        require(-self.equals("verb", ""))
        # A request is about one kind; only access reviews may name them all.
        star = self.world.languages.containing("*")
        for field in ("apiGroup", "apiVersion", "resource"):
            require(-self.field(field).in_language(star))
        require(-self.equals("username", ""))
        # Conditions of an impersonation travel in the user's extra, and are not part of proofs.
        conditions = self.field("extra").field("k8s.io/impersonation-conditions")
        if conditions is not None:
            require(-conditions.present)
        for selector in SELECTORS:
            element = _present(self.request, selector)
            require(-element.present, self.one_of("verb", ("list", "watch", "deletecollection")))
        self._require_data(all_of((self.carries_data, -self.is_connect)))

    def _require_name(self) -> None:
        """`request.name` is the name in the URL; that of the object for a create without one."""
        require, equal = self.circuit.require, self.comparing.equal
        name = _present(self.request, "name").value
        from_object = self.circuit.all_of((self.equals("verb", "create"), equal(self.name, Constant(""))))
        require(from_object, equal(name, self.name))
        metadata = _present(self.data["object"], "metadata")
        object_name = _present(metadata.value, "name")
        is_named = self.circuit.all_of((self.carries_data, metadata.present, object_name.present))
        require(-from_object, -is_named, equal(name, object_name.value))
        require(-from_object, is_named, equal(name, Constant("")))

    def _require_data(self, is_plain_write: int) -> None:
        require = self.circuit.require
        deletes = self.circuit.all_of((is_plain_write, self.one_of("verb", ("delete", "deletecollection"))))
        creates = self.circuit.all_of((is_plain_write, self.equals("verb", "create")))
        given, old = self.data["object"].is_kind(ValueKind.MAP), self.data["oldObject"].is_kind(ValueKind.MAP)
        require(-given, self.carries_data)
        require(-old, self.carries_data)
        require(-self.carries_data, deletes, given)
        require(-deletes, -given)
        for literal in (creates, self.is_connect):
            require(-literal, -old)
        require(-is_plain_write, creates, old)
        # Every object has metadata, except for the options of a connect request.
        for name in ("object", "oldObject", "namespaceObject"):
            present = _present(self.data[name], "metadata").present
            require(-self.data[name].is_kind(ValueKind.MAP), present, self.is_connect if name == "object" else FALSE)
        operation = self.data["operation"]
        is_given = operation.is_kind(ValueKind.STRING)
        require(-is_given, self.carries_data)
        require(-self.carries_data, is_given)
        for verb, word in OPERATIONS.items():
            require(-is_plain_write, -self.equals("verb", verb), self.comparing.equal(operation, Constant(word)))
        require(
            -self.circuit.all_of((self.carries_data, self.is_connect)),
            self.comparing.equal(operation, Constant("CONNECT")),
        )
        options = self.data["options"].is_kind(ValueKind.MAP)
        require(-options, self.carries_data)
        in_namespace = self.circuit.all_of((self.carries_data, -self.equals("namespace", "")))
        namespace = self.data["namespaceObject"].is_kind(ValueKind.MAP)
        require(-namespace, in_namespace)
        require(namespace, -in_namespace)


def _present(parent: Unknown, name: str) -> Element:
    element = parent.field(name)
    assert element is not None, f"there may be a field {name}"
    return element
