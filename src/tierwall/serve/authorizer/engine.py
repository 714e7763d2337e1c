"""The webhook authorizer as an engine: API servers ask it, and so obey the policies (docs/authorizer.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tierwall.core.protocols import Engine, Report
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.authorizer.policy_set import PolicySet, policy_set_of
from tierwall.serve.authorizer.run import Settings, run
from tierwall.serve.follower import Source


class Authorizer(Engine[Snapshot, Source, PolicySet]):
    """A process that API servers ask. Nothing holds while it is not there, so `apply` is absent."""

    planes: ClassVar[tuple[str, ...]] = ("api",)

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()

    def compile(self, snapshot: Snapshot) -> PolicySet:
        """The chain of authorizers, ready to be asked; InputError with everything that is wrong."""
        return policy_set_of(snapshot)

    def follow(self, source: Source, tell: Callable[[Report], None]) -> None:
        """Serve until SIGTERM or SIGINT; InputError if it cannot begin.

        The process writes about itself as JSON lines on standard error, and its decisions to the log that the settings
        name.
        """
        run(source, self._settings)
