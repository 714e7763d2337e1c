"""CEL as a circuit: when an expression is true, when it is false, and, where it is neither, when it is an error.

Exactly what the evaluator does (`cel.evaluate`), for every value of the variables at once: `&&`, `||`, `all` and
`exists` absorb errors, `?:` evaluates one branch, a missing field is an error unless `has` or `?.` asks for it.
What has no translation is `Unsupported`, with its place, or an open outcome (`open_outcome`). Cost limits are not part
of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from tierwall.cel.environment import Environment
from tierwall.cel.evaluate.dispatch import has_field, optional_field
from tierwall.cel.library.optionals import LAZY
from tierwall.cel.partial_evaluation import outcomes
from tierwall.cel.syntax import ast
from tierwall.cel.values import OptionalValue, map_keys
from tierwall.logic.cel.functions import Functions
from tierwall.logic.cel.loop import Loop
from tierwall.logic.cel.open_outcome import OpenOutcomes
from tierwall.logic.cel.outcome import Possible, conjunction, opposite
from tierwall.logic.cel.terms import (
    MISSING,
    MISSING_BOOL,
    NOTHING,
    Constant,
    Items,
    Leaf,
    LeafComparison,
    MissingData,
    SomeValue,
    Term,
    boolean,
    decided,
    defined,
    known_leaves,
    merged,
    missing,
    optional,
    refuse_doubtful,
    under,
)
from tierwall.logic.cel.unknown import Demands, Unknown, UnknownWorld, ValueKind
from tierwall.logic.circuit import FALSE, TRUE, Circuit
from tierwall.logic.unsupported import Unsupported, WorldLimit

MAX_ROUNDS = 12
Result = TypeVar("Result")


class Rails(msgspec.Struct, frozen=True):
    """The literals that say that an expression is true, and that it is false; it is an error if neither is."""

    true: int
    false: int
    # It depends on data that the request does not carry: then it is neither true nor false, and no error.
    missing: int = FALSE
    # And the data may make it true.
    missing_true: int = FALSE


def settle(
    build: Callable[[UnknownWorld], Result], spare: int = 0, *, effort: float = 1.0, members: int = 1
) -> tuple[UnknownWorld, Result]:
    """Write a question down in worlds with more and more elements, until one has all that the question asks for."""
    demands = Demands({}, {})
    for _ in range(MAX_ROUNDS):
        world = UnknownWorld(demands, spare, effort=effort, members=members)
        try:
            result = build(world)
        except RecursionError:
            raise Unsupported("so deep an expression") from None
        if demands.covers(world.found):
            return world, result
        demands = demands.joined(world.found)
    raise Unsupported("lists that depend on each other")


class Encoder:
    """Translates expressions over the variables of one world."""

    def __init__(
        self,
        world: UnknownWorld,
        environment: Environment,
        variables: Mapping[str, Leaf],
        opened: OpenOutcomes | None = None,
    ) -> None:
        self._world = world
        # Where given, it takes what has no translation.
        self._opened = opened
        self._number = opened.enlist() if opened is not None else 0
        self._circuit = world.circuit
        self._environment = environment
        self._variables = variables
        self._comparing = LeafComparison(world)
        self._functions = Functions(self._comparing, environment)
        # By comprehension, its names, and what it comes to for what these mean.
        self._names: dict[ast.Expr, frozenset[str]] = {}
        self._comprehensions: dict[tuple[ast.Expr, tuple[int, ...]], tuple[list[Term], Term]] = {}

    def rails(self, node: ast.Expr) -> Rails:
        """Return when an expression is true, and when it is false."""
        with self._world.owned_by((self._number, node)):
            result = self._possible(node, {})
        may_be_true = self._circuit.all_of((result.is_missing, result.may_be_true))
        return Rails(result.true, result.false, result.is_missing, may_be_true)

    def _possible(self, node: ast.Expr, scope: Mapping[str, Term]) -> Possible:
        """Return what an expression comes to where only a bool counts: there it can be given up."""
        if self._opened is None:
            return Possible.of(self._circuit, self._term(node, scope))
        key = self._number, node
        if key not in self._opened.given_up:
            try:
                return Possible.of(self._circuit, self._term(node, scope))
            except WorldLimit:
                raise
            except Unsupported as error:
                self._opened.given_up[key] = error
            except RecursionError:
                if scope or self._world.owner != key:
                    raise
                self._opened.given_up[key] = Unsupported("so deep an expression")
        reason = self._opened.given_up[key]
        return self._opened.outcome(node, self._environment, self._variables, scope, reason)

    def _term(self, node: ast.Expr, scope: Mapping[str, Term]) -> Term:
        self._world.check_size()
        try:
            return self._translated(node, scope)
        except Unsupported as error:
            if error.at < 0 and getattr(node, "at", -1) >= 0:
                raise Unsupported(error.construct, node.at) from None
            raise

    def _translated(self, node: ast.Expr, scope: Mapping[str, Term]) -> Term:
        match node:
            case ast.Literal():
                return [(TRUE, Constant(node.value))]
            case ast.Ident():
                return self._name(node.name, scope)
            case ast.Select():
                name = ast.dotted_name(node)
                if name is not None and name in self._variables and name.partition(".")[0] not in scope:
                    return self._name(name, scope)
                step = self._optional_field if node.optional else self._field
                return self._each(self._term(node.operand, scope), lambda leaf: step(leaf, node.field))
            case ast.Has():
                presence = self._each(self._term(node.operand, scope), lambda leaf: self._has(leaf, node.field))
                return [(guard, MISSING_BOOL if leaf is MISSING else leaf) for guard, leaf in presence]
            case ast.Call():
                return self._call(node, scope)
            case ast.ListExpr():
                return self._list(node, scope)
            case ast.MapExpr():
                return self._map(node, scope)
            case ast.Comprehension():
                return self._comprehension(node, scope)
            case ast.Bind():
                return self._bind(node, scope)
            case ast.MessageExpr():
                return []

    def _each(self, term: Term, step: Callable[[Leaf], Term]) -> Term:
        """Apply a step to every leaf."""
        results = []
        for guard, leaf in term:
            if guard != FALSE:
                result: Term = [(TRUE, MISSING)] if isinstance(leaf, MissingData) else step(leaf)
                results.append(under(self._circuit, guard, result))
        return merged(self._circuit, results)

    def _name(self, name: str, scope: Mapping[str, Term]) -> Term:
        if name in scope:
            return scope[name]
        name = name.removeprefix(".")
        if name in self._variables:
            return [(TRUE, self._variables[name])]
        raise Unsupported(f"`{name}`")

    def _field(self, leaf: Leaf, name: str) -> Term:
        match leaf:
            case Unknown():
                field = leaf.field(name)
                return [(field.present, field.value)] if field is not None else []
            case Constant(value=dict() as entries):
                return [(TRUE, Constant(entries[name]))] if name in entries else []
            case SomeValue() | Constant(value=OptionalValue()):
                return self._optional_field(leaf, name)
        return []

    def _optional_field(self, leaf: Leaf, name: str) -> Term:
        if isinstance(leaf, Constant):
            if isinstance(leaf.value, list) or (
                isinstance(leaf.value, OptionalValue) and isinstance(leaf.value.value, list)
            ):
                return []
            return [(TRUE, Constant(optional_field(leaf.value, name)))]
        refuse_doubtful(leaf)
        inner = leaf.value if isinstance(leaf, SomeValue) else leaf
        if isinstance(inner, Constant):
            return (
                self._optional_field(inner, name) if not isinstance(inner.value, OptionalValue) else [(TRUE, NOTHING)]
            )
        if isinstance(inner, Items):
            return []
        if not isinstance(inner, Unknown):
            return [(TRUE, NOTHING)]
        field = inner.field(name)
        present = field.present if field is not None else FALSE
        term: Term = [(self._circuit.all_of((-inner.is_kind(ValueKind.LIST), -present)), NOTHING)]
        return term if field is None else [(present, SomeValue(field.value)), *term]

    def _has(self, leaf: Leaf, name: str) -> Term:
        refuse_doubtful(leaf)
        inner = leaf.value if isinstance(leaf, SomeValue) else leaf
        match inner:
            case Unknown():
                field = inner.field(name)
                present = field.present if field is not None else FALSE
                return decided(self._circuit, -inner.is_kind(ValueKind.LIST), present)
            case Items():
                return []
            case Constant(value=value):
                if isinstance(value, OptionalValue) and leaf is inner:
                    value = value.value
                return [] if isinstance(value, list) else [(TRUE, Constant(has_field(value, name)))]
        return boolean(FALSE, TRUE)

    def _call(self, node: ast.Call, scope: Mapping[str, Term]) -> Term:
        function, args = self._environment.resolve_call(node)
        circuit = self._circuit
        if function in ast.LOGICAL:
            operands = [self._possible(arg, scope) for arg in args]
            if function == "_&&_":
                return conjunction(circuit, operands).term(circuit)
            return opposite(conjunction(circuit, list(map(opposite, operands)))).term(circuit)
        if function == ast.CONDITIONAL:
            return self._conditional(args, scope)
        if function == "!_":
            return opposite(self._possible(args[0], scope)).term(circuit)
        terms = [self._term(arg, scope) for arg in args]
        if function in LAZY and len(terms) == 2:
            return self._each(terms[0], lambda leaf: self._or(leaf, terms[1], unwraps=function == "orValue"))
        return self._functions.call(function, terms)

    def _conditional(self, args: Sequence[ast.Expr], scope: Mapping[str, Term]) -> Term:
        """`?:` evaluates one branch; where nobody knows which, either may be it."""
        circuit = self._circuit
        test = self._possible(args[0], scope)
        guards = (test.true, test.false)
        if test.is_missing == FALSE:
            branches = [
                under(circuit, guard, self._term(arg, scope))
                for guard, arg in zip(guards, args[1:], strict=True)
                if guard != FALSE
            ]
            return merged(circuit, branches)
        terms = [self._term(arg, scope) for arg in args[1:]]
        left = circuit.all_of((test.is_missing, -test.true, -test.false))
        may_be_true, may_be_false, other = [], [], []
        for chosen, term in zip((test.may_be_true, test.may_be_false), terms, strict=True):
            branch = Possible.of(circuit, term)
            may_be_true.append(circuit.all_of((chosen, branch.may_be_true)))
            may_be_false.append(circuit.all_of((chosen, branch.may_be_false)))
            other.append(circuit.all_of((chosen, _is_no_bool(circuit, term))))
        known = Possible(FALSE, FALSE, circuit.any_of(may_be_true), circuit.any_of(may_be_false), left).term(circuit)
        may_be_other = circuit.any_of(other)
        open_ones = [
            (circuit.all_of((guard, has_other)), MissingData(leaf.possible | bit))
            for guard, leaf in known
            if isinstance(leaf, MissingData)
            for has_other, bit in ((may_be_other, outcomes.OTHER), (-may_be_other, 0))
        ]
        settled = (under(circuit, guard, term) for guard, term in zip(guards, terms, strict=True))
        return merged(circuit, [*settled, [(guard, leaf) for guard, leaf in open_ones if guard != FALSE]])

    def _or(self, leaf: Leaf, default: Term, unwraps: bool) -> Term:
        match leaf:
            case SomeValue():
                return [(TRUE, leaf.value if unwraps else leaf)]
            case Constant(value=OptionalValue(present=True, value=value)):
                return [(TRUE, Constant(value) if unwraps else leaf)]
            case Constant(value=OptionalValue()):
                return default
        return []

    def _list(self, node: ast.ListExpr, scope: Mapping[str, Term]) -> Term:
        terms = [self._term(element, scope) for element in node.elements]
        if node.optional and any(place in node.optional for place in range(len(terms))):
            raise Unsupported("`?` in a list", node.at)
        constants = [term[0][1] for term in terms if len(term) == 1 and term[0][0] == TRUE]
        known = [leaf.value for leaf in constants if isinstance(leaf, Constant)]
        if len(known) == len(terms):
            return [(TRUE, Constant(known))]
        circuit = self._circuit
        absent = circuit.any_of(missing(circuit, term) for term in terms)
        everything = circuit.all_of((-absent, *(defined(circuit, term) for term in terms)))
        entries = tuple((TRUE, known_leaves(term)) for term in terms)
        return [(everything, Items(entries, lambda count: None)), (absent, MISSING)]

    def _map(self, node: ast.MapExpr, scope: Mapping[str, Term]) -> Term:
        from tierwall.cel.errors import Failure
        from tierwall.cel.evaluate.evaluator import Evaluator

        if not ast.is_constant(node):
            raise Unsupported("a map with values that are not known", node.at)
        try:
            return [(TRUE, Constant(Evaluator(node, self._environment).evaluate({})))]
        except Failure:
            return []

    def _bind(self, node: ast.Bind, scope: Mapping[str, Term]) -> Term:
        value = self._term(node.value, scope)
        if node.macro == "bind":
            body = self._term(node.body, {**scope, node.variable: value})
            return under(self._circuit, self._circuit.any_of(guard for guard, _ in value), body)

        def present(leaf: Leaf) -> Term:
            if isinstance(leaf, Constant) and isinstance(leaf.value, OptionalValue):
                if not leaf.value.present:
                    return [(TRUE, NOTHING)]
                inner: Leaf = Constant(leaf.value.value)
            elif isinstance(leaf, SomeValue):
                inner = leaf.value
            else:
                return []
            body = self._term(node.body, {**scope, node.variable: [(TRUE, inner)]})
            return body if node.macro == "optFlatMap" else [(guard, optional(result)) for guard, result in body]

        return self._each(value, present)

    def _comprehension(self, node: ast.Comprehension, scope: Mapping[str, Term]) -> Term:
        """A comprehension about the same values comes to the same: a loop around it asks for no more elements."""
        if node not in self._names:
            self._names[node] = frozenset(ast.names(node))
        used = [scope[name] for name in sorted(self._names[node] & scope.keys())]
        key = node, tuple(map(id, used))
        if key not in self._comprehensions:
            # The terms are kept, so that no other one gets the same id.
            self._comprehensions[key] = used, self._looped(node, scope)
        return self._comprehensions[key][1]

    def _looped(self, node: ast.Comprehension, scope: Mapping[str, Term]) -> Term:
        if len(node.variables) != 1 or node.macro == "sortBy":
            raise Unsupported(f"`{node.macro}` with {len(node.variables)} variables", node.at)
        circuit = self._circuit

        def evaluate(body: ast.Expr, element: Term) -> Term:
            return self._term(body, {**scope, node.variables[0]: element})

        def judge(body: ast.Expr, element: Term) -> Possible:
            return self._possible(body, {**scope, node.variables[0]: element})

        loop = Loop(self._world, node, evaluate, judge)
        results = []
        for guard, leaf in self._term(node.target, scope):
            if isinstance(leaf, MissingData):
                results.append(under(circuit, guard, loop.left_over()))
                continue
            for present, items in self._items(leaf):
                results.append(under(circuit, circuit.all_of((guard, present)), loop.over(items)))
        return merged(circuit, results)

    def _items(self, leaf: Leaf) -> list[tuple[int, Items]]:
        match leaf:
            case Items():
                return [(TRUE, leaf)]
            case Constant(value=list() as items) | Constant(value=dict() as items):
                elements = items if isinstance(items, list) else map_keys(items)
                entries = tuple((TRUE, [(TRUE, Constant(item))]) for item in elements)
                return [(TRUE, Items(entries, lambda count: None))]  # type: ignore[arg-type]
            case Unknown():
                kinds = [kind for kind in (ValueKind.LIST, ValueKind.MAP) if leaf.is_kind(kind) != FALSE]
                return [(leaf.is_kind(kind), self._comparing.items(leaf, kind)) for kind in kinds]
        return []


def _is_no_bool(circuit: Circuit, term: Term) -> int:
    """Return whether a term is, or may be, a value other than a bool."""
    others = []
    for guard, leaf in term:
        if isinstance(leaf, MissingData):
            others.append(guard if leaf.possible & outcomes.OTHER else FALSE)
        elif isinstance(leaf, Unknown):
            others.append(circuit.all_of((guard, -leaf.is_kind(ValueKind.BOOL))))
        elif not (isinstance(leaf, Constant) and isinstance(leaf.value, bool)):
            others.append(guard)
    return circuit.any_of(others)
