"""From manifests to what proxies obey: each load is checked, compiled and put in force, or shown and left.

The last good state stays in force when a load cannot be used: text that is no YAML, an object that an API server would
refuse, a certificate that is missing or does not fit its key. Nothing of a broken load is applied.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tierwall.analyze.admission import admission
from tierwall.core.diagnostics import Diagnostic, errors_of, in_order
from tierwall.engines.envoy.compile import Cache, Resources, compile, straightened
from tierwall.engines.envoy.listing import May
from tierwall.engines.envoy.options import Options
from tierwall.engines.envoy.toolslist import permitted
from tierwall.resources.load import Loaded
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.metrics import Metrics


class Prepared:
    """A load, compiled; `errors` say why it cannot come into force, `number` which compilation it was."""

    __slots__ = ("diagnostics", "loaded", "number", "resources", "seconds")

    def __init__(
        self,
        loaded: Loaded,
        diagnostics: tuple[Diagnostic, ...],
        resources: Resources | None,
        seconds: float,
        number: int,
    ) -> None:
        self.loaded = loaded
        self.diagnostics = diagnostics
        self.resources = resources
        self.seconds = seconds
        self.number = number

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """What keeps the load from coming into force."""
        return errors_of(self.diagnostics)


class Controller:
    """The state in force, and the last load that was looked at."""

    def __init__(self, options: Options, metrics: Metrics) -> None:
        self._options = options
        self._metrics = metrics
        self._cache = Cache()
        self._in_force = 0
        self.snapshot: Snapshot | None = None
        self.latest: Prepared | None = None

    def prepare(self, loaded: Loaded) -> Prepared:
        """Check and compile a load; nothing comes into force. May run in another thread, one at a time."""
        begun = time.perf_counter()
        found = [*loaded.diagnostics, *admission(loaded.snapshot)]
        resources = None
        if not errors_of(found):
            resources = compile(loaded.snapshot, self._options, self._cache)
            found += resources.diagnostics
        prepared = Prepared(loaded, in_order(found), resources, time.perf_counter() - begun, self._cache.number)
        if resources is not None and prepared.errors:
            self._cache.undo()
        return prepared

    def accept(self, prepared: Prepared) -> Resources | None:
        """Take a load for the state in force, if it can be; what the proxies are to be given."""
        self.latest = prepared
        good = prepared.resources is not None and not prepared.errors
        self._metrics.loads.labels("good" if good else "broken").inc()
        if not good:
            return None
        self.snapshot = prepared.loaded.snapshot
        self.put(prepared.number)
        self._metrics.load_seconds.observe(prepared.seconds)
        self._metrics.objects.set(len(prepared.loaded.snapshot))
        return prepared.resources

    def settle(self) -> None:
        """Every proxy has what is in force."""
        self._cache.settle(self._in_force)

    @property
    def is_drifted(self) -> bool:
        """Whether a control plane that starts anew would give other names than proxies have."""
        return self._cache.is_drifted and self.snapshot is not None

    def straighten(self) -> tuple[Resources, int]:
        """What is in force with straight names, and the number of the compilation. May run where `prepare` may."""
        assert self.snapshot is not None
        return straightened(self.snapshot, self._options, self._cache), self._cache.number

    def put(self, number: int) -> None:
        """This compilation is in force."""
        self._in_force = number

    def permitted(self, place: Mapping[str, Any], caller: str | None) -> May | None:
        """Which tools a caller may call at a place, by what is in force."""
        return permitted(self.snapshot, place, caller) if self.snapshot is not None else None
