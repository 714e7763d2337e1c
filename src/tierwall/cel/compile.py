"""From a tree to a Python function, for expressions that are evaluated often.

Compiling takes longer than evaluating a few times, so programs ask for it only once they are used repeatedly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tierwall.cel import ast
from tierwall.cel.dispatch import Meter
from tierwall.cel.environment import Environment
from tierwall.cel.generate import Generator, Unsupported

# Takes the variables and the cost limit; raises anything at all where it cannot tell.
Fast = Callable[[Mapping[str, object], int], object]


def compiled(tree: ast.Expr, environment: Environment) -> Fast | None:
    """The fast path of a tree, or None where it has none."""
    generator = Generator(environment)
    try:
        source = generator.source(tree)
        code = compile(source, "<cel>", "exec")
    except (Unsupported, SyntaxError, RecursionError, MemoryError, ValueError):
        # Python's own limits (nested blocks, indentation) are reasons not to have a fast path, no more.
        return None
    namespace = generator.namespace
    exec(code, namespace)  # noqa: S102 - names made by the generator and constants through repr; no text of the user's
    # Taken out, or the function would have itself among its globals: such a circle only goes when it is looked for.
    run = namespace.pop("run")
    assert callable(run)
    if not generator.metered:
        return lambda variables, limit: run(variables, limit, None)
    return lambda variables, limit: run(variables, limit, Meter(limit))
