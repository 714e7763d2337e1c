"""The words for calls that do not check: what was expected, what was found, and what may have been meant."""

from __future__ import annotations

from tierwall.cel.environment import Environment, Function, Signature, introduced
from tierwall.cel.errors import did_you_mean
from tierwall.cel.table import EXTENSION
from tierwall.cel.types import Type

_SHOWN = 4


def unknown_function(name: str, environment: Environment) -> str | None:
    """A hint for a function that the environment does not have."""
    since = introduced().get(name)
    if since == EXTENSION:
        return f"`{name}` is an extension that Kubernetes does not offer"
    if since is not None and since > environment.release:
        return f"`{name}` needs Kubernetes 1.{since} or later; this environment is 1.{environment.release}"
    names = [each for each in environment.functions if each[0].isalpha()]
    last = name.rpartition(".")[2]
    return did_you_mean(name, names) or did_you_mean(last, names)


def no_overload(
    function: Function, candidates: tuple[Signature, ...], given: tuple[Type, ...]
) -> tuple[str, str | None]:
    """The message and the hint for a call that no overload fits."""
    name = spelled(function.name)
    found = _listed(given)
    if not candidates:
        member = bool(function.members)
        style = f"value.{name}(…)" if member else f"{name}(…)"
        return f"`{name}` cannot be called so: expected `{style}`", None
    if function.name in ("_==_", "_!=_"):
        return f"`{name}` expected two values of one type, found {found}", _conversion(given)
    fitting = [each for each in candidates if len(each.overload.params) == len(given)] or list(candidates)
    closer = [each for each in fitting if given and each.overload.params[:1] == given[:1]]
    shown = list(dict.fromkeys(_listed(each.overload.params) for each in closer or fitting))
    expected = " or ".join(shown[:_SHOWN]) + (" …" if len(shown) > _SHOWN else "")
    return f"`{name}` expected {expected}, found {found}", _conversion(given)


def _listed(given: tuple[Type, ...]) -> str:
    return f"({', '.join(map(str, given))})"


def _conversion(given: tuple[Type, ...]) -> str | None:
    names = {each.name for each in given}
    if len(given) == 2 and len(names) == 2 and names <= {"int", "uint", "double"}:
        return f"convert one side, such as `{given[0].name}(…)`"
    return None


def spelled(function: str) -> str:
    """An operator as it is written, any other function by its name."""
    if function == "@in":
        return "in"
    return function.replace("_", "") if function.startswith("_") or function in ("!_", "-_") else function
