"""Random CEL trees of every shape that the parser can produce."""

from __future__ import annotations

from hypothesis import strategies as st

from tierwall.cel.syntax import ast
from tierwall.cel.values import Uint

_BINARY = ("_+_", "_-_", "_*_", "_/_", "_%_", "_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in", "_[_]", "_[?_]")
NAMES = st.sampled_from(["a", "b", "request", "object", "x1", "_y", "size"])
FIELDS = st.sampled_from(["f", "name", "if", "namespace", "in", "true", "a-b", "x/y z", "9", "a.b"])
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)

LITERALS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1).map(Uint),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
    st.binary(max_size=6),
).map(ast.Literal)


def _calls(inner: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Expr]:
    args = st.lists(inner, max_size=3).map(tuple)
    functions = st.sampled_from(["f", "size", "startsWith", "namespace", "type"])
    return st.one_of(
        st.builds(ast.Call, st.sampled_from(["f", "size", "type", ".f"]), st.none(), args),
        st.builds(ast.Call, functions, inner, args),
        st.builds(ast.Call, st.sampled_from(_BINARY), st.none(), st.tuples(inner, inner)),
        st.builds(
            ast.Call, st.sampled_from(ast.LOGICAL), st.none(), st.lists(inner, min_size=2, max_size=4).map(tuple)
        ),
        st.builds(ast.Call, st.sampled_from(["!_", "-_"]), st.none(), st.tuples(inner)),
        st.builds(ast.Call, st.just(ast.CONDITIONAL), st.none(), st.tuples(inner, inner, inner)),
    )


def _macros(inner: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Expr]:
    one_variable = st.tuples(st.sampled_from(["v", "w"]))
    two_variables = st.just(("v", "w"))
    single, double = st.tuples(inner), st.tuples(inner, inner)
    quantifiers = st.sampled_from(["all", "exists", "exists_one", "filter", "map", "sortBy"])
    transforms = st.sampled_from(["transformList", "transformMap", "transformMapEntry"])
    listed = inner.map(lambda each: ast.ListExpr((each,)))  # `sortBy` takes no literal
    return st.one_of(
        st.builds(ast.Comprehension, quantifiers, listed, one_variable, single),
        st.builds(ast.Comprehension, st.just("map"), inner, one_variable, double),
        st.builds(ast.Comprehension, st.sampled_from(["all", "exists", "existsOne"]), inner, two_variables, single),
        st.builds(ast.Comprehension, transforms, inner, two_variables, st.one_of(single, double)),
        st.builds(ast.Bind, st.sampled_from(["bind", "optMap", "optFlatMap"]), st.just("v"), inner, inner),
    )


def _aggregates(inner: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Expr]:
    entries = st.lists(st.builds(ast.MapEntry, inner, inner, st.booleans()), max_size=3).map(tuple)
    fields = st.lists(st.builds(ast.MapEntry, FIELDS.map(ast.Literal), inner, st.booleans()), max_size=2).map(tuple)
    marked = st.lists(st.tuples(inner, st.booleans()), max_size=3)
    return st.one_of(
        marked.map(
            lambda items: ast.ListExpr(
                tuple(each for each, _ in items), tuple(i for i, (_, optional) in enumerate(items) if optional)
            )
        ),
        st.builds(ast.MapExpr, entries),
        st.builds(ast.MessageExpr, st.sampled_from(["T", "a.b.T", ".c.T", "if.T"]), fields),
    )


def _nested(inner: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Expr]:
    return st.one_of(
        _calls(inner),
        st.builds(ast.Select, inner, FIELDS, st.booleans()),
        st.builds(ast.Has, inner, FIELDS),
        _aggregates(inner),
        _macros(inner),
    )


TREES: st.SearchStrategy[ast.Expr] = st.recursive(
    st.one_of(NAMES.map(ast.Ident), st.just(ast.Ident(".a")), LITERALS), _nested, max_leaves=12
)


def same(left: object, right: object) -> bool:
    """Whether two trees are equal apart from their offsets; an int is not a uint, bool or double."""
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple):
        assert isinstance(right, tuple)
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, ast.ExprNode | ast.MapEntry):
        return all(same(getattr(left, name), getattr(right, name)) for name in left.__struct_fields__ if name != "at")
    return repr(left) == repr(right)
