"""From manifests to what proxies obey: each load is checked, compiled and put in force, or shown and left.

The last good state stays in force when a load cannot be used: text that is no YAML, an object that an API server would
refuse, a certificate that is missing or does not fit its key. Nothing of a broken load is applied.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from tierwall.analyze.admission import admission
from tierwall.core.diagnostics import Diagnostic, errors_of, in_order
from tierwall.engines.envoy.compile import Resources, State, compile, straightened
from tierwall.engines.envoy.listing import May
from tierwall.engines.envoy.options import Options
from tierwall.engines.envoy.toolslist import permitted
from tierwall.resources.load import Loaded
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.metrics import Metrics


class Prepared(Struct, frozen=True, eq=False):
    """A load, compiled, with the state to go on from; without `resources`, or with `errors`, it is not put in force."""

    loaded: Loaded
    diagnostics: tuple[Diagnostic, ...]
    resources: Resources | None
    state: State
    seconds: float

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """What keeps the load from coming into force."""
        return errors_of(self.diagnostics)


class Controller:
    """The state in force, and the last load that was looked at."""

    def __init__(self, options: Options, metrics: Metrics) -> None:
        self._options = options
        self._metrics = metrics
        self._state = State()
        # The last compilation that every proxy has taken. A number, as they may take one while another is prepared.
        self._settled = 0
        self.snapshot: Snapshot | None = None
        self.latest: Prepared | None = None

    def prepare(self, loaded: Loaded) -> Prepared:
        """Check and compile a load; nothing comes into force. May run in another thread, one at a time."""
        begun = time.perf_counter()
        found = [*loaded.diagnostics, *admission(loaded.snapshot)]
        resources, state = None, self._state
        if not errors_of(found):
            resources, state = compile(loaded.snapshot, self._options, state.settle(self._settled))
            found += resources.diagnostics
        return Prepared(loaded, in_order(found), resources, state, time.perf_counter() - begun)

    def accept(self, prepared: Prepared) -> Resources | None:
        """Take a load for the state in force, if it can be; what the proxies are to be given."""
        self.latest = prepared
        good = prepared.resources is not None and not prepared.errors
        self._metrics.loads.labels("good" if good else "broken").inc()
        if not good:
            return None
        self.snapshot = prepared.loaded.snapshot
        self.put(prepared.state)
        self._metrics.load_seconds.observe(prepared.seconds)
        self._metrics.objects.set(len(prepared.loaded.snapshot))
        return prepared.resources

    def settle(self) -> None:
        """Every proxy has what is in force."""
        self._settled = self._state.number

    @property
    def is_drifted(self) -> bool:
        """Whether a control plane that starts anew would give other names than proxies have."""
        return self._state.is_drifted

    def straighten(self) -> tuple[Resources, State]:
        """What is in force with straight names, and the state to put in force. May run where `prepare` may."""
        return straightened(self._state.settle(self._settled))

    def put(self, state: State) -> None:
        """What was compiled with this state is in force."""
        self._state = state

    def permitted(self, place: Mapping[str, Any], caller: str | None) -> May | None:
        """Which tools a caller may call at a place, by what is in force."""
        return permitted(self.snapshot, place, caller) if self.snapshot is not None else None
