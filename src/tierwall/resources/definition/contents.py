"""What schemas hold: defaults that must fit, and rules that must be CEL over the schema that they stand on.

Text: apiextensions' `pkg/apiserver/schema/defaulting/validation.go` and `pkg/apiserver/schema/cel/compilation.go`.
"""

from __future__ import annotations

from tierwall.cel import CheckError, Environment, ParseError
from tierwall.cel.check.checker import compile_source
from tierwall.cel.check.structural import object_type, schema_type
from tierwall.cel.types import BOOL, DYN, STRING, Type
from tierwall.resources.admission.expression import reads_old_self
from tierwall.resources.admission.problem import RULE, Metered
from tierwall.resources.admission.validate import MOST_PROBLEMS, Compiler
from tierwall.resources.definition.report import Path, Report, Words, field
from tierwall.resources.schema import Reader

HEAD = ("apiVersion", "kind", "metadata")


class Contents:
    """Looks at the defaults and rules of schemas that are structural."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def check(
        self, words: Words, path: Path, *, is_object: bool, uncorrelated: Path | None, in_map: bool = False
    ) -> None:
        """Defaults must fit their schemas and rules must be CEL over them, here and below.

        `uncorrelated` is the first schema above whose old and new values cannot be told to be the same. Defaults of
        what is in the values of a map are not looked at.
        """
        if self.report.is_full:
            return
        before = len(self.report.problems)
        if words.get("x-kubernetes-validations"):
            self_type = object_type("self", words) if is_object else schema_type("self", words)
            if self_type == DYN and words.get("x-kubernetes-int-or-string") is not True:
                detail = "rules cannot stand on a schema that CEL has no type for"
                self.report.invalid((*path, "x-kubernetes-validations"), words.get("type", ""), detail, RULE)
                return
            for index, rule in enumerate(words["x-kubernetes-validations"]):
                self._expression(rule, self_type, (*path, "x-kubernetes-validations", index), uncorrelated)
        inside = uncorrelated or (path if words.get("x-kubernetes-map-type") == "atomic" else None)
        for name, inner in (words.get("properties") or {}).items():
            if not (is_object and name in HEAD):
                below = bool(inner.get("x-kubernetes-embedded-resource"))
                self.check(inner, (*path, "properties", name), is_object=below, uncorrelated=inside, in_map=in_map)
        items, values = words.get("items"), words.get("additionalProperties")
        if isinstance(items, dict):
            inside = uncorrelated or (path if words.get("x-kubernetes-list-type") != "map" else None)
            below = bool(items.get("x-kubernetes-embedded-resource"))
            self.check(items, (*path, "items"), is_object=below, uncorrelated=inside, in_map=in_map)
        if isinstance(values, dict):
            self.check(values, (*path, "additionalProperties"), is_object=False, uncorrelated=uncorrelated, in_map=True)
        # A default is held against rules too, so they must be sound.
        if words.get("default") is not None and not in_map and len(self.report.problems) == before:
            self._default(words, path)

    def _default(self, words: Words, path: Path) -> None:
        found = Metered()
        schema = Reader({}, installed=True).read(words)
        Compiler(strict=True, native=False, metered=True, repeated=True).compile(schema)(words["default"], None, found)
        for problem in found[:MOST_PROBLEMS]:
            self.report.invalid((*path, "default"), words["default"], f"must fit: {problem.message}", problem.code)

    def _expression(self, rule: Words, self_type: Type, path: Path, uncorrelated: Path | None) -> None:
        optional = rule.get("optionalOldSelf") is True
        old = Type("optional_type", (self_type,)) if optional else self_type
        environment = Environment(variables={"self": self_type, "oldSelf": old})
        if not self._compiles(rule["rule"], environment, BOOL, "a bool", (*path, "rule")):
            return
        if reads_old_self(rule["rule"]):
            if uncorrelated is not None:
                detail = "oldSelf cannot be used on the uncorrelatable portion of the schema within"
                self.report.invalid((*path, "rule"), rule["rule"], f"{detail} {field(uncorrelated)}")
        elif rule.get("optionalOldSelf") is not None:
            detail = "may not be set if oldSelf is not used in rule"
            self.report.invalid((*path, "optionalOldSelf"), rule["optionalOldSelf"], detail)
        if rule.get("messageExpression"):
            at = (*path, "messageExpression")
            self._compiles(rule["messageExpression"], environment, STRING, "a string", at)

    def _compiles(self, text: str, environment: Environment, wanted: Type, name: str, path: Path) -> bool:
        try:
            if compile_source(text, environment).type == wanted:
                return True
            self.report.invalid(path, text, f"cel expression must evaluate to {name}", RULE)
        except (ParseError, CheckError) as error:
            self.report.invalid(path, text, f"compilation failed: {error}", RULE)
        return False
