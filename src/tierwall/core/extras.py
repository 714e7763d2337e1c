"""The optional parts of the installation (docs/index.md#install): which extra brings which package.

`tierwall` alone answers questions. What keeps running needs packages that most users do without. Where such a package
is missing, commands and the Python API say which extra brings it (`TW671`). A test holds the table to `pyproject.toml`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierwall.core.diagnostics import InputError

# The top-level packages of each extra. The binary of the extra `envoy` is looked for where Envoy is started.
# A package of two extras is missed by the first.
EXTRAS = {
    "cluster": ("httpx", "socksio"),
    "serve": (
        "cel",
        "cryptography",
        "envoy",
        "google",
        "grpc",
        "httptools",
        "httpx",
        "prometheus_client",
        "socksio",
        "starlette",
        "uvicorn",
        "uvloop",
        "watchfiles",
        "xds",
    ),
    "prove": ("pysat",),
    "ui": ("h11", "starlette", "uvicorn", "watchfiles"),
}


def missing_extra(error: ModuleNotFoundError) -> InputError:
    """Return the error that names the extra with a missing package; raise the given error if no extra has it."""
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    if extra is None:
        raise error
    return _extra_error(extra, package)


def require_extra(extra: str) -> None:
    """Raise InputError unless an extra is installed: for what needs packages that a smaller extra has, too."""
    from importlib.util import find_spec

    for package in EXTRAS[extra]:
        if find_spec(package) is None:
            raise _extra_error(extra, package)


def _extra_error(extra: str, package: str) -> InputError:
    from tierwall.core.diagnostics import Diagnostic, InputError

    message = f"the extra `{extra}` is not installed: the package `{package}` is missing"
    return InputError([Diagnostic("TW671", message, hint=f"install it with `pip install 'tierwall[{extra}]'`")])
