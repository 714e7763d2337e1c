"""From manifests to what proxies obey: how a load is compiled for Envoys and handed to them (`follower`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tierwall.engines.envoy.config.compile import Resources, State, compile, straightened
from tierwall.engines.envoy.config.options import Options
from tierwall.engines.envoy.control.toolslist import May, permitted
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.follower import Follower, Load, Prepared


class Compilation(NamedTuple):
    """What proxies are to be given, and the state that the next compilation goes on from."""

    resources: Resources
    state: State


class Controller(Follower[Compilation]):
    """Compiles loads, and publishes what comes into force."""

    def __init__(
        self,
        options: Options,
        publish: Callable[[Resources], object],
        count: Callable[[Load[Compilation]], None] | None = None,
    ) -> None:
        super().__init__(count)
        self._options = options
        self._publish = publish
        self._state = State()
        # The last compilation that every proxy has taken. A number, as they may take one while another is prepared.
        self._settled = 0

    def prepare(self, snapshot: Snapshot) -> Prepared[Compilation]:
        """Compile a snapshot."""
        compilation = Compilation(*compile(snapshot, self._options, self._state.settle(self._settled)))
        return Prepared(compilation, compilation.resources.diagnostics)

    def enforce(self, load: Load[Compilation]) -> bool:
        """Give the proxies what was compiled."""
        assert load.state is not None
        self.put(load.state)
        return True

    def settle(self) -> None:
        """Every proxy has what is in force."""
        self._settled = self._state.number

    @property
    def is_drifted(self) -> bool:
        """Whether a control plane that starts anew would give other names than proxies have."""
        return self._state.is_drifted

    def straighten(self) -> Compilation:
        """What is in force with straight names. May run where `prepare` may, and not at the same time."""
        return Compilation(*straightened(self._state.settle(self._settled)))

    def put(self, compilation: Compilation) -> None:
        """Publish a compilation: it is in force."""
        self._state = compilation.state
        self._publish(compilation.resources)

    def permitted(self, place: Mapping[str, Any], caller: str | None) -> May | None:
        """Which tools a caller may call at a place, by what is in force."""
        return permitted(self.good.snapshot, place, caller) if self.good is not None else None
