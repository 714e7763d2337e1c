"""Random policies and routes: a real Envoy takes whatever is compiled, and what is not compiled has a diagnostic."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from envoy.config.rbac.v3 import rbac_pb2
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.engines.test_envoy_compile import policies
from tests.labs.envoy_attacks import GATEWAY_API, NETWORKING, policy
from tests.randomness import examples
from tests.worlds.envoy_expressions import route_matches, rules
from tests.worlds.tool_objects import manifest
from tierwall.analyze.admission import admission_findings
from tierwall.engines.envoy.config.bootstrap import static_bootstrap
from tierwall.engines.envoy.config.compile import compile
from tierwall.engines.envoy.config.options import MAX_PROGRAM_SIZE, EnvoyOptions
from tierwall.engines.envoy.control.process import find_envoy
from tierwall.resources.load import load_objects
from tierwall.resources.snapshot import Snapshot

pytestmark = pytest.mark.engine
Object = dict[str, Any]


def refusal(objects: list[Object]) -> str:
    """Return why Envoy refuses what these objects compile to, or an empty string."""
    options = EnvoyOptions(static=True, max_program_size=MAX_PROGRAM_SIZE)
    resources, _ = compile(Snapshot.of(load_objects(objects)), options)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bootstrap.pb"
        bootstrap = static_bootstrap(resources, Path(folder) / "admin.sock", MAX_PROGRAM_SIZE)
        file.write_bytes(bootstrap.SerializeToString())
        command = [*find_envoy().command(file), "--mode", "validate"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stderr + done.stdout)[-500:] if done.returncode else ""


def world(random_rules: list[list[Object]], matches: list[list[Object]]) -> list[Object]:
    """Return a backend with a policy for each list of rules, and a route to it for each list of matches."""
    listener = {"name": "web", "port": 80, "protocol": "HTTP"}
    out = [manifest(f"{GATEWAY_API}/v1", "Gateway", "gate", {"gatewayClassName": "c", "listeners": [listener]})]
    for number, listed in enumerate(random_rules):
        backend = {"group": NETWORKING, "kind": "XBackend", "name": f"b{number}"}
        spec = {"mcp": {"serviceName": "s", "port": 80}}
        route = {"matches": [{"path": {"value": f"/b{number}"}}], "backendRefs": [backend]}
        parents = [{"name": "gate"}]
        out += [
            manifest(f"{NETWORKING}/v0alpha0", "XBackend", f"b{number}", spec),
            manifest(f"{GATEWAY_API}/v1", "HTTPRoute", f"b{number}", {"parentRefs": parents, "rules": [route]}),
            policy(f"p{number}", f"b{number}", listed),
        ]
        if number < len(matches) and matches[number]:
            rules = [{**route, "matches": matches[number]}]
            out.append(
                manifest(f"{GATEWAY_API}/v1", "HTTPRoute", f"m{number}", {"parentRefs": parents, "rules": rules})
            )
    return out


class RandomWorld(NamedTuple):
    """Random rules of policies, and random matches of routes; the whole would be too long to print."""

    rules: list[list[Object]]
    matches: list[list[Object]]

    def __repr__(self) -> str:
        return f"<{len(self.rules)} policies, {len(self.matches)} routes>"


WORLDS = st.builds(
    RandomWorld,
    st.lists(st.lists(rules(), min_size=1, max_size=2), min_size=20, max_size=40),
    st.lists(route_matches(), max_size=10),
)


@given(WORLDS)
@settings(
    max_examples=examples(8),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
def test_envoy_takes_what_is_compiled_and_the_rest_has_a_diagnostic(random: RandomWorld) -> None:
    objects = world(random.rules, random.matches)
    snapshot = Snapshot.of(load_objects(objects))
    resources, _ = compile(snapshot, EnvoyOptions(max_program_size=MAX_PROGRAM_SIZE))
    diagnostics = (*resources.diagnostics, *admission_findings(snapshot))
    named = {diagnostic.reference.name for diagnostic in diagnostics if diagnostic.reference is not None}
    assert [diagnostic for diagnostic in resources.diagnostics if diagnostic.code == "TW661"] == []
    for number, listed in enumerate(random.rules):
        [only] = policies(resources, f"prod/b{number}/0/0/mcp")
        action = rbac_pb2.Action.FromString(only.decision.action.typed_config.value)
        assert action.action == rbac_pb2.RBAC.ALLOW or not action.name or f"p{number}" in named, listed
    if refusal(objects):
        # One at a time, so that the failure shows only what Envoy refuses.
        refused = [(words, listed) for listed in random.rules if (words := refusal(world([listed], [])))]
        refused += [(words, each) for each in random.matches if (words := refusal(world([[{}]], [each])))]
        raise AssertionError(refused)
