"""Envoy as an engine: what compiles, asks and runs it, put together (docs/enforce-tools.md, docs/run.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from tierwall.core.protocols import Engine, Reply, Report
from tierwall.core.question import Question
from tierwall.engines.envoy.config.compile import Resources, compile
from tierwall.engines.envoy.config.options import Options
from tierwall.resources.snapshot import Snapshot

if TYPE_CHECKING:
    from tierwall.serve.follower import Source
    from tierwall.serve.run import Settings


class Envoy(Engine[Snapshot, "Source", Resources]):
    """Envoys that are fed over xDS. Nothing holds without a process that feeds them, so `apply` is absent."""

    planes: ClassVar[tuple[str, ...]] = ("tool",)

    def __init__(self, options: Options | None = None, settings: Settings | None = None) -> None:
        self._options = options or Options()
        self._settings = settings

    def compile(self, snapshot: Snapshot) -> Resources:
        """Listeners, routes, clusters and secrets that enforce the policies."""
        resources, _ = compile(snapshot, self._options)
        return resources

    def follow(self, source: Source, tell: Callable[[Report], None]) -> None:
        """Feed Envoys, and run one, until SIGINT or SIGTERM; InputError if it cannot begin.

        Decisions go to the decision log that the settings name.
        """
        from tierwall.serve.follower import until_signalled
        from tierwall.serve.run import Run, Settings

        run = Run(self._options, self._settings or Settings(), tell)
        until_signalled(lambda stop: run.run(source, stop))

    def ask(self, snapshot: Snapshot, questions: Sequence[Question]) -> Iterator[Reply]:
        """Send a real request for each question through an Envoy that is started for them."""
        from tierwall.engines.envoy.probe.asking import Requests
        from tierwall.engines.probe import replies

        return replies(Requests(snapshot), questions)
