"""Envoy as an engine: compiles loads and hands them to proxies (docs/enforce-tools.md, docs/run.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from tierwall.core.diagnostics import Diagnostic, sorted_diagnostics
from tierwall.core.protocols import Engine, EngineReply, EngineReport
from tierwall.core.question import Question
from tierwall.engines.envoy.config.compile import CompileState, XdsResources, canonicalized, compile
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.config.settings.item_rules import ItemRules
from tierwall.engines.envoy.control.refusal import WAITING, ProxyAnswers, RefusalSearch
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.follower import Follower, Load, ObjectSource, PreparedState, until_signalled

if TYPE_CHECKING:
    # Compiling alone needs neither gRPC nor an event loop.
    from tierwall.engines.envoy.control.caller_view import CallerView
    from tierwall.serve.run import RunSettings


class Compilation(NamedTuple):
    """A configuration for proxies, and the state for the next compilation."""

    resources: XdsResources
    state: CompileState


class EnvoyController(Follower[Compilation]):
    """Compiles loads, and publishes those that come into force."""

    def __init__(
        self,
        options: EnvoyOptions,
        publish: Callable[[XdsResources], object],
        count: Callable[[Load[Compilation]], None] | None = None,
    ) -> None:
        super().__init__(count)
        self.options = options
        self._publish = publish
        self._state = CompileState()
        self.search = RefusalSearch()
        # The last compilation that every proxy has acknowledged. It may change while another is prepared, so it is kept
        # apart from the state.
        self._acknowledged = 0
        # The rules about items that routes name, and those that they named before.
        self._rules: Mapping[str, ItemRules] = {}
        self._rules_before: Mapping[str, ItemRules] = {}

    def prepare(self, snapshot: Snapshot) -> PreparedState[Compilation]:
        """Compile a snapshot; objects that proxies refuse are closed."""
        compilation = self._compile(snapshot)
        return PreparedState(compilation, _problems(compilation))

    def _compile(self, snapshot: Snapshot) -> Compilation:
        state = self._state.acknowledge(self._acknowledged)
        return Compilation(*compile(snapshot, self.options, state, self.search.closed(snapshot)))

    def enforce(self, load: Load[Compilation]) -> bool:
        """Publish the compiled configuration."""
        assert load.state is not None
        self.put(load.state)
        return True

    def next_step(self, answers: ProxyAnswers) -> bool:
        """Look for objects that proxies refuse; return whether to `recompile`. Not while a load is prepared."""
        from tierwall.engines.envoy.control.cache import EXTENSION, FIELDS

        state = self._state.acknowledge(self._acknowledged)
        refused = (refusal.type_url for refusals in answers.refusals.values() for refusal in refusals)
        if state.unaccepted and answers.is_settled and EXTENSION in refused:
            # What is refused may be what an object was before it changed, or an object that is gone.
            self._state = state.without_unaccepted()
            return True
        return self.search.next_step(answers, lambda type_url, name: self._state.contributors(FIELDS[type_url], name))

    def recompile(self) -> Compilation:
        """Compile what is in force again, as the search wants it. It may run where `prepare` may."""
        assert self.in_force is not None
        return self._compile(self.in_force.snapshot)

    def put_again(self, compilation: Compilation) -> None:
        """Put another compilation of the load in force, with its own diagnostics."""
        load = self.in_force
        assert load is not None
        assert load.state is not None
        replaced = set(map(id, load.state.resources.diagnostics))
        kept = (diagnostic for diagnostic in load.diagnostics if id(diagnostic) not in replaced)
        load.diagnostics = sorted_diagnostics((*kept, *_problems(compilation)))
        load.state = compilation
        self.put(compilation)

    def publish_again(self) -> None:
        """Publish what is in force again, after the ports that can be opened have changed."""
        self._publish(self._state.resources)

    @property
    def state(self) -> CompileState:
        """The state of the compilation that was last published, or is being published."""
        return self._state

    def acknowledge(self) -> None:
        """Note that every proxy has acknowledged what is in force."""
        self._acknowledged = self._state.number

    @property
    def has_noncanonical_names(self) -> bool:
        """Whether a restarted control plane would give other names than proxies have."""
        return self._state.has_noncanonical_names

    def canonicalize(self) -> Compilation:
        """Return what is in force with canonical names. It may run where `prepare` may, but not at the same time."""
        return Compilation(*canonicalized(self._state.acknowledge(self._acknowledged)))

    def put(self, compilation: Compilation) -> None:
        """Put a compilation in force and publish it."""
        self._state = compilation.state
        served = compilation.state.served
        self._rules_before, self._rules = self._rules, served.item_rules if served is not None else {}
        self.search.publish(compilation.state.snapshot, compilation.state.refused)
        self._publish(compilation.resources)

    def view_of(self, place: Mapping[str, Any], caller: str | None) -> CallerView | None:
        """Return what a caller may do at a place, by what is in force; None if there is no such place."""
        from tierwall.engines.envoy.control.caller_view import view_of

        return view_of(self.in_force.snapshot, place, caller) if self.in_force is not None else None

    def rules_of(self, name: str) -> ItemRules | None:
        """Return the rules about items with this name; None if no route named them lately."""
        return self._rules.get(name) or self._rules_before.get(name)

    def has_rules(self, name: str) -> bool:
        """Whether the rules about items with this name are in force."""
        return name in self._rules


def _problems(compilation: Compilation) -> tuple[Diagnostic, ...]:
    """Return what is wrong with objects, without those that are closed only until they are tried."""
    return tuple(problem for problem in compilation.resources.diagnostics if WAITING not in problem.message)


class Envoy(Engine[Snapshot, ObjectSource, XdsResources]):
    """Envoys that are fed over xDS. A process must keep running to feed them, so `apply` is absent."""

    planes: ClassVar[tuple[str, ...]] = ("tool", "gateway")

    def __init__(self, options: EnvoyOptions | None = None, settings: RunSettings | None = None) -> None:
        self._options = options or EnvoyOptions()
        self._settings = settings

    def compile(self, snapshot: Snapshot) -> XdsResources:
        """Return the listeners, routes, clusters and secrets that enforce the policies."""
        resources, _ = compile(snapshot, self._options)
        return resources

    def follow(self, source: ObjectSource, send_report: Callable[[EngineReport], None]) -> None:
        """Feed Envoys, and run one, until SIGINT or SIGTERM; InputError if it cannot start.

        Decisions go to the decision log of the settings.
        """
        from tierwall.serve.run import ControlPlane, RunSettings

        run = ControlPlane(self._options, self._settings or RunSettings(), send_report)
        until_signalled(lambda stop: run.run(source, stop))

    def ask(self, snapshot: Snapshot, questions: Sequence[Question]) -> Iterator[EngineReply]:
        """Send real requests for each question through an Envoy that is started for this."""
        from tierwall.engines.envoy.probe.asking import EnvoyProbe
        from tierwall.engines.envoy.probe.gateway_asking import GatewayProbe
        from tierwall.engines.probe import replies

        by_plane = {
            "tool": replies(EnvoyProbe(snapshot), [question for question in questions if question.plane == "tool"]),
            "gateway": replies(
                GatewayProbe(snapshot), [question for question in questions if question.plane == "gateway"]
            ),
        }
        return (next(by_plane[question.plane]) for question in questions)

    def limits(self, snapshot: Snapshot) -> Iterator[Diagnostic]:
        """Return the rules that Envoy cannot evaluate, and the policies over its limits."""
        from tierwall.engines.envoy.config.findings import envoy_findings

        return envoy_findings(snapshot)
