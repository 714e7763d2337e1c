"""Conditional entries: a traffic field may hold a list of `{condition, policy}` instead of its own fields.

The first entry whose condition is true is used; one entry may lack a condition, and it must be the last.
"""

from tierwall.resources.kinds.agentgateway.scalars import cel_expression
from tierwall.resources.schema import Property, Rule, Schema, array, obj, optional, required, rule


def conditional(policy: Schema) -> Property:
    """The `conditional` list of a field whose unconditional form is `policy`."""
    return optional(
        "conditional",
        array(
            obj(optional("condition", cel_expression), required("policy", policy)),
            rule(
                "self.filter(e, !has(e.condition)).size() <= 1 && "
                "(!self.exists(e, !has(e.condition)) || !has(self[size(self) - 1].condition))",
                "conditional entries without condition must be last",
            ),
            min_items=1,
            max_items=16,
        ),
        "Entries of which the first with a true condition applies.",
    )


def excludes(*names: str) -> Rule:
    """`conditional` and the flat fields exclude each other."""
    tests = ",".join(f"has(self.{name})" for name in names)
    return rule(
        f"has(self.conditional) ? [{tests}].filter(x,x==true).size() == 0 : true",
        "conditional cannot be set with any other field",
    )
