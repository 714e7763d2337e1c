"""The Envoys of one Gateway: compiles its configuration, feeds them, and knows what each of them holds.

Each Gateway is compiled alone. So its Envoys get nothing of another Gateway, ports of different Gateways never compete,
and an object that Envoy refuses is searched for among those of its Gateway only.

INVARIANT: what an Envoy is said to hold was in force in a configuration that it acknowledged as a whole, and has been
in every configuration published since. A change of one policy takes nothing away from the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from tierwall.attach.listener import listener_sets
from tierwall.attach.place import GATEWAY
from tierwall.attach.target import ACCESS_POLICIES
from tierwall.core.diagnostics import Diagnostics
from tierwall.engines.envoy.config.compile import CompileState, XdsResources
from tierwall.engines.envoy.config.options import EnvoyOptions
from tierwall.engines.envoy.control.proxies import ProxyGroup
from tierwall.engines.envoy.control.refusal import WAITING
from tierwall.engines.envoy.control.stream import IsFresh, XdsStream
from tierwall.resources.load import LoadResult
from tierwall.resources.read import ReadResult
from tierwall.resources.resource import Identity
from tierwall.resources.snapshot import Snapshot
from tierwall.serve.controller.envoy_report import EnvoyReport, Generation, generation_digest, generation_of
from tierwall.serve.envoy import Compilation, EnvoyController
from tierwall.serve.follower import Load

# The codes of a policy that Envoy does not hold as it is written: it refuses the policy, cannot express a rule, the
# policy is over a limit, or cannot be compiled. What they are about is closed.
CLOSING = frozenset(("TW636", "TW651", "TW660", "TW661"))
# How long an Envoy that has just connected may take to say what it holds, in seconds.
ARRIVAL_S = 5.0
# How long an answer waits for others before they are looked at, in seconds.
QUIET_S = 0.02


class GatewayEnvoys:
    """Feeds the Envoys of one Gateway. It calls `changed` whenever its report may have changed."""

    def __init__(
        self, name: str, options: EnvoyOptions, changed: Callable[[], None], is_fresh: IsFresh = lambda moment: True
    ) -> None:
        self.name = name
        self.is_open = True
        self._changed = changed
        self.proxies = ProxyGroup(self._answered, is_fresh)
        self._controller = EnvoyController(replace(options, gateways=frozenset((name,))), self._publish)
        # The generations that the configuration in force holds, and the words about those that it closes.
        self.generations: frozenset[Generation] = frozenset()
        self.refused: Mapping[Generation, str] = {}
        self._digests: frozenset[str] = frozenset()
        self._held: dict[XdsStream, frozenset[str]] = {}
        self._arrived: dict[XdsStream, float] = {}
        self._looking: asyncio.TimerHandle | None = None
        # How long the last look at the answers took.
        self._seconds = 0.0

    # Loads

    def prepare(self, snapshot: Snapshot) -> Compilation:
        """Compile a snapshot; it may run in a thread."""
        return self._controller.prepare(snapshot).state

    def enforce(self, snapshot: Snapshot, compilation: Compilation) -> None:
        """Publish what was compiled."""
        self.is_open = True
        loaded = LoadResult((), snapshot, Diagnostics(), ReadResult((), (), {}))
        self._controller.accept(Load(loaded, compilation.resources.diagnostics, state=compilation))

    def close(self) -> None:
        """Take everything away from the Envoys: the Gateway is gone, or is not ours any more."""
        self.is_open = False
        self.generations, self.refused, self._digests = frozenset(), {}, frozenset()
        self._held = {}
        self.proxies.publish(XdsResources())

    async def attend(self, idle: bool) -> bool:
        """Process what Envoys answered; return whether further answers are due."""
        controller = self._controller
        if controller.in_force is None or not self.is_open:
            return False
        answers = self.proxies.answers(controller.search.at_fault)
        if controller.next_step(answers):
            controller.put_again(await asyncio.to_thread(controller.recompile))
            return True
        if idle and controller.has_noncanonical_names and self.proxies.is_acknowledged:
            controller.put(await asyncio.to_thread(controller.canonicalize))
        return bool(answers.refusals or controller.search.number_waiting) and not answers.is_settled

    def _publish(self, resources: XdsResources) -> None:
        held = held_generations(self._controller.state)
        self.generations, self.refused = held
        self._digests = frozenset(map(generation_digest, self.generations))
        self._held = {stream: digests & self._digests for stream, digests in self._held.items()}
        self.proxies.publish(resources)

    # Answers

    def _answered(self) -> None:
        """Look at the answers soon: Envoys send many, and looking takes as long as there are resources and Envoys."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(max(QUIET_S, 5 * self._seconds), self._look)

    def _look(self) -> None:
        self._looking = None
        now = time.monotonic()
        streams = [stream for stream in self.proxies.streams if stream.subscriptions]
        self._arrived = {stream: self._arrived.get(stream, now) for stream in streams}
        held = {stream: self._held.get(stream, frozenset()) for stream in streams}
        if self.proxies.cache.is_published:
            held |= {stream: self._digests for stream in streams if stream.is_acknowledged}
        self._held = held
        if self.proxies.is_acknowledged:
            self._controller.acknowledge()
        self._seconds = time.monotonic() - now
        self._changed()

    @property
    def report(self) -> EnvoyReport:
        """A report about the connected Envoys."""
        now = time.monotonic()
        held: dict[str, frozenset[str]] = {}
        arriving: set[str] = set()
        for stream, digests in self._held.items():
            # A connection that ended without a word may still be there beside the next one.
            held[stream.proxy.id] = held.get(stream.proxy.id, digests) & digests
            if not digests and self._digests and now - self._arrived[stream] < ARRIVAL_S:
                arriving.add(stream.proxy.id)
        return EnvoyReport(
            held=held,
            arriving=frozenset(arriving),
            refused={generation_digest(generation): words for generation, words in self.refused.items()},
            problems=self._problems,
        )

    @property
    def closed(self) -> dict[Identity, str]:
        """The objects that are closed because Envoy refuses them, with its words; policies are in `refused`."""
        refused = self._controller.state.refused
        return {
            identity: words
            for identity, words in refused.items()
            if words != WAITING and identity[:2] not in ACCESS_POLICIES
        }

    @property
    def _problems(self) -> tuple[str, ...]:
        at_fault = self._controller.search.at_fault
        return tuple(
            f"{stream.proxy.id} refuses {refusal}"
            for stream in self.proxies.streams
            if stream in at_fault
            for refusal in stream.refusals
        )


def held_generations(state: CompileState) -> tuple[frozenset[Generation], dict[Generation, str]]:
    """Return the generations that a configuration holds as they are written, and words about those that it closes.

    They are the policies of its checkpoints, its Gateways and their ListenerSets. A policy that is closed until it is
    tried is in neither.
    """
    problems: dict[Identity, dict[str, None]] = {}
    for entry in state.policies.checkpoints.values():
        for policy in entry.checkpoint.policies:
            messages = (problem.message for problem in policy.diagnostics if problem.code in CLOSING)
            problems.setdefault(policy.policy, {}).update(dict.fromkeys(messages))
    held: set[Generation] = set()
    closed: dict[Generation, str] = {}
    names = state.options.gateways or frozenset()
    for gateway in state.snapshot.of_kind(*GATEWAY):
        if f"{gateway.namespace}/{gateway.name}" in names and gateway.identity not in state.refused:
            held.add(generation_of(gateway))
            held |= {generation_of(added) for added in listener_sets(state.usable.snapshot, gateway)}
    for identity, words in problems.items():
        resource = state.snapshot.get(*identity)
        if resource is None or state.refused.get(identity) == WAITING:
            continue
        if words:
            closed[generation_of(resource)] = "; ".join(words)
        else:
            held.add(generation_of(resource))
    return frozenset(held), closed
