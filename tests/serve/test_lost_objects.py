"""A typing mistake in a policy's kind, group or namespace does not make the policy disappear."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.labs.authorizer_server import Clock
from tierwall.resources.load import Loader
from tierwall.serve.files import FileSource
from tierwall.serve.state import StateFolder

TOOLS = """\
apiVersion: agentic.networking.x-k8s.io/v1alpha1
kind: XAccessPolicy
metadata: {name: guard, namespace: shop}
spec:
  action: Allow
"""
NETWORK = """\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: guard, namespace: shop}
spec: {podSelector: {}}
"""
API = """\
apiVersion: tierwall.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: guard, namespace: shop}
"""
POLICIES = {"tools": TOOLS, "network": NETWORK, "api": API}
KINDS = {"tools": "XAccessPolicy", "network": "NetworkPolicy", "api": "AuthorizationPolicy"}
NAMESPACES = ("[shop]", "5", '"shop "', "Shop", '"shop\\n"', '""', "", "sh_op", "{a: b}", "true")


def mistakes() -> list[tuple[str, str]]:
    """Return texts with one typing mistake, each with its plane."""
    out = []
    for plane, text in POLICIES.items():
        kind = KINDS[plane]
        group = text.split("/")[0].removeprefix("apiVersion: ")
        kinds = (
            kind[:-1],
            kind.lower(),
            kind + "s",
            f'"{kind} "',
            kind + "List",
            kind.replace("P", "\u0420"),
            kind[2:],
        )
        out += [(plane, text.replace(f"kind: {kind}", f"kind: {wrong}")) for wrong in kinds]
        groups = (group[1:], group.upper(), f"{group}/", "example.com", group.replace("o", "oo"))
        out += [(plane, text.replace(f"{group}/", f"{wrong}/")) for wrong in groups]
        # In a version that is not served, other policies close what they guard.
        versions = ("v9", "v1beta") if plane == "network" else ()
        out += [(plane, text.replace(f"{group}/v1", f"{group}/{wrong}")) for wrong in versions]
        out += [(plane, text.replace("namespace: shop", f"namespace: {wrong}")) for wrong in NAMESPACES]
        out += [
            (plane, text.replace("namespace: shop", f"{key}: shop")) for key in ("namspace", "Namespace", "nameSpace")
        ]
        out += [(plane, text.replace(f"{group}/v1", f"{group}", 1).replace("alpha1", "", 1))]
    return out + [("tools", TOOLS.replace("XAccessPolicy", wrong)) for wrong in ("Foo", "Policy", "!!binary WEE=")]


class Followed:
    """A file whose objects are followed."""

    def __init__(self, path: Path, text: str, state: StateFolder | None = None) -> None:
        self.path, self.clock = path, Clock()
        path.write_text(text)
        self.source = FileSource(Loader([str(path)]), None, state, self.clock)
        self.loaded = self.source.read()

    def write(self, text: str) -> Followed:
        self.path.write_text(text)
        self.loaded = self.source.read() or self.loaded
        return self

    def has(self, kind: str) -> bool:
        assert self.loaded is not None
        return any((item.kind, item.namespace, item.name) == (kind, "shop", "guard") for item in self.loaded.snapshot)

    @property
    def codes(self) -> list[str]:
        assert self.loaded is not None
        return [problem.code for problem in self.loaded.diagnostics]


@pytest.mark.parametrize(("plane", "text"), mistakes())
def test_a_typing_mistake_does_not_remove_a_policy(tmp_path: Path, plane: str, text: str) -> None:
    kind = KINDS[plane]
    file = Followed(tmp_path / "a.yaml", f"{POLICIES[plane]}---\n{API.replace('guard', 'other')}")
    file.write(text)
    assert file.has(kind)
    assert "TW010" in file.codes
    file.write(POLICIES[plane])
    assert file.has(kind)
    assert file.codes == []


@pytest.mark.parametrize(("plane", "text"), mistakes())
def test_a_fresh_start_takes_the_copy(tmp_path: Path, plane: str, text: str) -> None:
    state = StateFolder(str(tmp_path / "state"))
    Followed(tmp_path / "a.yaml", POLICIES[plane], state)
    # The end of the process releases the folder.
    os.close(state._lock)
    file = Followed(tmp_path / "a.yaml", text, StateFolder(str(tmp_path / "state")))
    assert file.has(KINDS[plane])
    assert "TW010" in file.codes


@pytest.mark.parametrize(
    "text",
    [
        NETWORK.replace("guard", "fence"),
        NETWORK.replace("namespace: shop", "namespace: bank"),
        NETWORK.replace(", namespace: shop", ""),
        NETWORK.replace("NetworkPolicy", "Ingress"),
        API,
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: guard, namespace: shop}\n",
        "apiVersion: example.com/v1\nkind: Guard\nmetadata: {name: guard, namespace: shop}\n",
        "apiVersion: example.com/v1\nkind: NetworkPolicy\nmetadata: {name: other, namespace: shop}\n",
    ],
)
def test_another_object_in_its_place_removes_it_at_once(tmp_path: Path, text: str) -> None:
    file = Followed(tmp_path / "a.yaml", NETWORK).write(text)
    assert not file.has("NetworkPolicy")
    assert "TW010" not in file.codes


def test_a_list_that_is_suddenly_without_items_is_an_empty_file(tmp_path: Path) -> None:
    file = Followed(tmp_path / "a.yaml", NETWORK).write("apiVersion: v1\nkind: List\nitems: []\n")
    assert file.has("NetworkPolicy")
    assert file.codes == ["TW012"]
    file.clock.now += 6
    assert not file.write("apiVersion: v1\nkind: List\nitems: []\n").has("NetworkPolicy")


def test_long_words_of_many_objects_are_compared_in_time(tmp_path: Path) -> None:
    text = "".join(f"---\n{NETWORK.replace('shop', f'n{number}')}" for number in range(300))
    file = Followed(tmp_path / "a.yaml", f"{NETWORK}{text}")
    file.write(text.replace("kind: NetworkPolicy", f"kind: {'NetworkPolicy' * 1000}"))
    assert not file.has("NetworkPolicy")
