"""CEL rules of schemas (`x-kubernetes-validations`), compiled when first needed and reported in upstream's words.

Text: apiextensions' `pkg/apiserver/schema/cel/validation.go`. A rule that cannot be evaluated (`no such key`, a wrong
overload) refuses the object, as does one that is false. `self` is bound to the value as its schema types it.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tierwall.cel.check.structural import unescape
from tierwall.resources.admission import wording
from tierwall.resources.admission.expression import (
    CostLimitExceeded,
    RuleError,
    compile_expression,
    evaluate_with_cost,
    fields_read,
    reads_old_self,
)
from tierwall.resources.admission.problem import (
    DUPLICATE,
    REQUIRED,
    RULE,
    UNSUPPORTED,
    WARNING,
    AdmissionProblem,
    MeteredProblems,
    PathStep,
    Trail,
    path_of_trail,
)
from tierwall.resources.schema import Schema, ValidationRule
from tierwall.values.pattern import pattern


class RuleRunner(Protocol):
    """Runs rules on a value, except those that read a field in `damaged`."""

    def __call__(
        self, value: Any, trail: Trail, problems: list[AdmissionProblem], damaged: frozenset[PathStep] = frozenset()
    ) -> None: ...


_CODES = {"FieldValueRequired": REQUIRED, "FieldValueDuplicate": DUPLICATE, "FieldValueNotSupported": UNSUPPORTED}
_STEP = pattern(r"\.([A-Za-z_][A-Za-z0-9_\-]*)|\['((?:[^'\\]|\\.)*)'\]")


def compile_rules(schema: Schema, *, native: bool) -> RuleRunner:
    """Return a function that runs every rule of `schema` on a value that fits the schema."""
    runs = [(rule, _compile_rule(rule, schema, native)) for rule in schema.rules]

    def run_all(
        value: Any, trail: Trail, problems: list[AdmissionProblem], damaged: frozenset[PathStep] = frozenset()
    ) -> None:
        for rule, run in runs:
            if not damaged or _cannot_see(rule, damaged):
                run(value, trail, problems)

    return run_all


def compile_metered_rules(schema: Schema) -> RuleRunner:
    """Compile the rules of an installed definition: they read typed values and share a cost budget per object.

    An object is judged as if it were new. Transition rules, which compare with the old object, only run if they
    handle a missing one (`optionalOldSelf`).
    """
    from tierwall.resources.admission.typed import compile_binding

    bind = compile_binding(schema)
    rules = [
        (rule, parse_field_path(rule.field_path))
        for rule in schema.rules
        if rule.optional_old_self or not reads_old_self(rule.expression)
    ]

    def run_all(
        value: Any, trail: Trail, problems: list[AdmissionProblem], damaged: frozenset[PathStep] = frozenset()
    ) -> None:
        meter = problems if isinstance(problems, MeteredProblems) else MeteredProblems()
        typed = bind(value)
        for rule, place in rules:
            if meter.budget < 0:
                return
            if damaged and not _cannot_see(rule, damaged):
                continue
            path = path_of_trail(trail)
            try:
                held, cost = evaluate_with_cost(rule.expression, typed)
            except RuleError as failure:
                detail = _failure(str(failure), rule)
                if isinstance(failure, CostLimitExceeded):
                    meter.budget = -1
                    message = "no further validation rules will be run due to call cost exceeds limit for rule"
                    detail = f"'{failure}': {message}: {(rule.message or rule.expression).strip()}"
                problems.append(AdmissionProblem(RULE, path, wording.invalid(path, schema.type, detail)))
                continue
            meter.budget -= cost
            if meter.budget < 0:
                message = "validation failed due to running out of cost budget, no further validation rules will be run"
                problems.append(AdmissionProblem(RULE, path, wording.invalid(path, schema.type, message)))
            elif held is not True:
                problems.append(_problem(rule, schema, False, value, path, place, typed))

    return run_all


def _cannot_see(rule: ValidationRule, damaged: frozenset[PathStep]) -> bool:
    """Whether a rule cannot see any of the damaged fields."""
    seen = fields_read(rule.expression)
    return seen is not None and rule.each not in damaged and damaged.isdisjoint(seen)


def parse_field_path(field_path: str) -> tuple[PathStep, ...]:
    """Return the steps of a rule's fieldPath (`.a.b['c']`)."""
    steps = tuple(match[1] or match[2] for match in _STEP.finditer(field_path))
    if "".join(match[0] for match in _STEP.finditer(field_path)) != field_path:
        raise ValueError(f"`{field_path}` is not a field path")
    return steps


def _compile_rule(
    rule: ValidationRule, schema: Schema, native: bool
) -> Callable[[Any, Trail, list[AdmissionProblem]], None]:
    evaluate = compile_expression(rule.expression)
    place = parse_field_path(rule.field_path)
    optional = optional_field(rule.expression)

    def run(value: Any, trail: Trail, problems: list[AdmissionProblem]) -> None:
        if optional and isinstance(value, dict) and optional not in value:
            return
        for item, index in _subjects(rule, value):
            try:
                held = evaluate(value, item)
            except RuleError as failure:
                detail = _failure(str(failure), rule)
                path = path_of_trail(trail)
                message = wording.invalid(path, schema.type, detail)
                problems.append(AdmissionProblem(WARNING if rule.warning else RULE, path, message, hint=rule.hint))
                continue
            if held is not True:
                problems.append(_problem(rule, schema, native, value, (*path_of_trail(trail), *index), place))

    return run


def optional_field(expression: str) -> str:
    """Return the field of an expression `!has(self.field) || …`, which is true if the field is absent; else "".

    Most rules have this form and most objects set few optional fields, so most expressions are never parsed.
    """
    guard, _, rest = expression.partition(") || ")
    field = guard.removeprefix("!has(self.")
    # `a || b ? c : d` means `(a || b) ? c : d`.
    return unescape(field) if field != guard and field.isidentifier() and rest and "?" not in rest else ""


def _subjects(rule: ValidationRule, value: Any) -> Iterator[tuple[Any, tuple[PathStep, ...]]]:
    if not rule.each:
        yield None, ()
    elif isinstance(value, dict):
        for index, item in enumerate(value.get(rule.each, ())):
            yield item, (rule.each, index)


def _failure(reason: str, rule: ValidationRule) -> str:
    words = (rule.message or rule.expression).strip()
    if reason.startswith("no such overload"):
        reason = reason.partition("(")[0]  # cel-go names the function only
        mismatch = "call arguments did not match a supported operator, function or macro signature for rule"
        return f"'{reason}': {mismatch}: {words}"
    return f"{reason} evaluating rule: {words}"


def _problem(
    rule: ValidationRule,
    schema: Schema,
    native: bool,
    value: Any,
    at: tuple[PathStep, ...],
    place: tuple[PathStep, ...],
    typed: Any = None,
) -> AdmissionProblem:
    path = (*at, *place)
    detail = _detail(rule, value if typed is None else typed)
    shown = _at(value, (*at[len(at) - 2 :], *place) if rule.each else place)
    match rule.reason:
        case "FieldValueRequired":
            message = wording.required(path, detail)
        case "FieldValueForbidden":
            message = wording.forbidden(path, detail)
        case "FieldValueDuplicate":
            message = wording.duplicate(path, shown)
        case "FieldValueNotSupported":
            message = f"{wording.field_path(path)}: Unsupported value: {wording.go_value(shown)}: {detail}"
        case _ if not native and schema.type in ("object", "array"):
            message = wording.invalid_compound(path, detail)
        case _:
            message = wording.invalid(path, shown if native else value, detail)
    code = WARNING if rule.warning else _CODES.get(rule.reason, RULE)
    return AdmissionProblem(code, path, message, hint=rule.hint)


def _detail(rule: ValidationRule, value: Any) -> str:
    if rule.message_expression:
        try:
            text = compile_expression(rule.message_expression)(value, None)
        except RuleError:
            text = None
        if isinstance(text, str):
            return text.strip()[:2048]
    return rule.message.strip() or f"failed rule: {rule.expression.strip()}"


def _at(value: Any, place: tuple[PathStep, ...]) -> Any:
    for step in place:
        if isinstance(value, dict):
            value = value.get(str(step))
        elif isinstance(value, list) and isinstance(step, int):
            value = value[step]
    return value
