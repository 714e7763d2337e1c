"""What is replaced, what is kept, and what stand-ins have in common with names (docs/clusters.md#redact)."""

from __future__ import annotations

import ipaddress
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import ROOT
from tests.randomness import examples, seeds
from tests.redact.renamed import snapshot_of, strings
from tests.worlds import api_clusters, gateway_clusters, tool_worlds
from tierwall.redact.addresses import address_translator
from tierwall.redact.redaction import RedactedObjects, redact
from tierwall.redact.stand_ins import stand_ins
from tierwall.resources.resource import Resource

Object = dict[str, Any]


def manifest(kind: str, name: str, api: str = "v1", namespace: str = "", **fields: Any) -> Object:
    labels = fields.pop("labels", None)
    metadata = {
        "name": name,
        **({"namespace": namespace} if namespace else {}),
        **({"labels": labels} if labels else {}),
    }
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}


def policy(expression: str, name: str = "guard") -> Object:
    spec = {"effect": "Allow", "expression": expression}
    return manifest("ClusterAuthorizationPolicy", name, "tierwall.io/v1alpha1", spec=spec)


def redacted(*objects: Object) -> RedactedObjects:
    return redact(snapshot_of(list(objects)))


def expression(text: str, *others: Object) -> tuple[str, RedactedObjects]:
    result = redacted(policy(text), *others)
    (value,) = [value for value in result.values if value["kind"] == "ClusterAuthorizationPolicy"]
    return value["spec"]["expression"], result


SHOP = manifest("Namespace", "shop", labels={"team": "payments", "acme.example/cost-center": "0815"})


def test_names_namespaces_labels_and_addresses_have_stand_ins() -> None:
    pod = manifest(
        "Pod",
        "web-0",
        namespace="shop",
        labels={"app.kubernetes.io/name": "web", "team": "payments"},
        spec={"nodeName": "worker-1", "serviceAccountName": "web", "containers": [{"ports": [{"name": "http"}]}]},
        status={"phase": "Running", "podIPs": [{"ip": "10.1.2.3"}], "hostIP": "192.168.7.1"},
    )
    result = redacted(SHOP, pod)
    namespace, copied = result.values
    rename = result.rename
    assert namespace["metadata"] == {
        "name": rename("shop"),
        "labels": {rename("team"): rename("payments"), rename("acme.example/cost-center"): rename("0815")},
    }
    assert copied["metadata"]["namespace"] == rename("shop")
    assert copied["metadata"]["name"] == f"{rename('web')}-0"
    assert copied["metadata"]["labels"] == {"app.kubernetes.io/name": rename("web"), rename("team"): rename("payments")}
    assert copied["spec"]["containers"] == [{"ports": [{"name": "http"}]}]
    assert copied["status"]["phase"] == "Running"
    assert ipaddress.ip_address(copied["status"]["podIPs"][0]["ip"]) in ipaddress.ip_network("10.0.0.0/8")
    left = " ".join(strings(list(result.values)))
    for name in ("shop", "web", "payments", "team", "acme", "0815", "worker", "10.1.2.3", "192.168.7.1"):
        assert name not in left


@pytest.mark.parametrize(
    "name",
    [
        *("default", "kube-system", "kube-public", "kube-node-lease", "system:masters", "system:authenticated"),
        *("kubernetes.io/metadata.name", "app.kubernetes.io/name", "topology.k8s.io/zone"),
        *("0.0.0.0/0", "::/0", "127.0.0.1"),
    ],
)
def test_words_of_kubernetes_are_kept(name: str) -> None:
    assert (
        redacted(manifest("Namespace", "shop", labels={"a": "b"}), policy(f'request.namespace == "{name}"')).rename(
            name
        )
        == name
    )


def test_the_label_with_the_name_of_a_namespace_agrees_with_the_namespace() -> None:
    result = redacted(manifest("Namespace", "shop", labels={"kubernetes.io/metadata.name": "shop"}))
    (value,) = result.values
    assert value["metadata"]["labels"] == {"kubernetes.io/metadata.name": value["metadata"]["name"]}


def test_service_accounts_agree_with_users_and_spiffe_ids() -> None:
    rename = redacted(manifest("ServiceAccount", "agent", namespace="shop")).rename
    assert rename("system:serviceaccount:shop:agent") == f"system:serviceaccount:{rename('shop')}:{rename('agent')}"
    spiffe = f"spiffe://cluster.local/ns/{rename('shop')}/sa/{rename('agent')}"
    assert rename("spiffe://cluster.local/ns/shop/sa/agent") == spiffe


def test_annotations_and_free_texts_are_left_out() -> None:
    value = manifest("ClusterAuthorizationPolicy", "p", "tierwall.io/v1alpha1")
    value["metadata"] |= {
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
            "tierwall.io/ignore": "TW204 see Ann",
        },
        "managedFields": [{"manager": "ann"}],
        "uid": "c0ffee",
        "resourceVersion": "17",
    }
    value["spec"] = {"effect": "Allow", "expression": "true", "description": "for Ann"}
    (copied,) = redacted(value).values
    assert copied["metadata"].pop("name") != "p"
    assert copied == {
        "apiVersion": "tierwall.io/v1alpha1",
        "kind": "ClusterAuthorizationPolicy",
        "metadata": {"annotations": {"tierwall.io/ignore": "TW204 redacted"}},
        "spec": {"effect": "Allow", "expression": "true"},
    }


def test_definitions_are_kept_and_foreign_objects_are_only_named() -> None:
    definition = manifest("CustomResourceDefinition", "widgets.acme.example", "apiextensions.k8s.io/v1")
    definition["spec"] = {"group": "acme.example", "names": {"kind": "Widget", "plural": "widgets"}}
    cilium = manifest("CiliumNetworkPolicy", "lockdown", "cilium.io/v2", "shop", spec={"endpointSelector": {"a": "b"}})
    first, second = redacted(definition, cilium).values
    assert first == definition
    assert second["metadata"]["name"] != "lockdown"
    assert "spec" not in second


def test_hosts_keep_their_wildcards() -> None:
    listeners = [{"name": "web", "port": 80, "protocol": "HTTP", "hostname": "*.Acme.example"}]
    gateway = manifest("Gateway", "edge", "gateway.networking.k8s.io/v1", "shop", spec={"listeners": listeners})
    route = manifest("HTTPRoute", "r", "gateway.networking.k8s.io/v1", "shop", spec={"hostnames": ["a.acme.example"]})
    first, second = redacted(gateway, route).values
    wildcard = first["spec"]["listeners"][0]["hostname"]
    assert wildcard.startswith("*.")
    assert "acme" not in wildcard
    assert second["spec"]["hostnames"][0].endswith(wildcard[1:])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('request.namespace == "shop"', 'request.namespace == "{shop}"'),
        ("request.namespace == 'shop' // for Ann\n", 'request.namespace == "{shop}" \n'),
        ('request.resource == "shop"', 'request.resource == "shop"'),
        ('["shop"].exists(r, r == request.resource)', '["shop"].exists(r, r == request.resource)'),
        ('["shop"].exists(n, n == request.namespace)', '["{shop}"].exists(n, n == request.namespace)'),
        ('request.namespace in ["shop", "default"]', 'request.namespace in ["{shop}", "default"]'),
        ('object.spec.class == "shop"', 'object.spec.class == "{shop}"'),
        ('object.spec.class == "fast"', 'object.spec.class == "fast"'),
        ('sets.intersects(request.userInfo.groups, ["ann"])', 'sets.intersects(request.userInfo.groups, ["{ann}"])'),
        ('request.userInfo.username == "ann"', 'request.userInfo.username == "{ann}"'),
        ('object.metadata.labels.team == "payments"', 'object.metadata.labels.{team} == "{payments}"'),
        ("has(object.metadata.labels.team)", "has(object.metadata.labels.{team})"),
        ('request.namespace.startsWith("shop-")', 'request.namespace.startsWith("{shop}-")'),
        ('authorizer.group("apps").namespace("shop")', 'authorizer.group("apps").namespace("{shop}")'),
    ],
)
def test_constants_of_expressions_change_with_the_names_that_they_equal(text: str, expected: str) -> None:
    got, result = expression(text, SHOP)
    names = {name: result.rename(name) for name in ("shop", "ann", "team", "payments")}
    assert got == expected.format(**names)
    assert not result.kept
    assert all(name != stand_in for name, stand_in in names.items() if "{" + name in expected)


def test_what_an_expression_hangs_on_is_kept_and_named() -> None:
    others = [manifest("Namespace", name) for name in ("shopping", "shop-b", "bank")]
    text = 'request.namespace.startsWith("shop")'
    got, result = expression(text, SHOP, *others)
    assert got == text
    assert [result.rename(name) for name in ("shop", "shopping", "shop-b")] == ["shop", "shopping", "shop-b"]
    assert result.rename("bank") != "bank"
    assert result.kept == (
        f"ClusterAuthorizationPolicy/guard: `{text}` looks inside names, so these are kept: "
        "`shop`, `shop-b` and `shopping`",
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('request.namespace.lowerAscii() == "shop"', ("Shop",)),
        ("size(request.namespace) == 4", ("Shop", "bank", "shop")),
        ('(request.namespace + ":" + request.name).endsWith("p:a")', ("Shop", "bank", "guard", "shop")),
        ('request.namespace.replace("s", "") == "hop"', ("Shop", "bank", "shop")),
    ],
)
def test_every_name_that_is_kept_is_named(text: str, names: tuple[str, ...]) -> None:
    _, result = expression(text, SHOP, manifest("Namespace", "bank"), manifest("Namespace", "Shop"))
    (sentence,) = result.kept
    *_, listed = sentence.partition("these are kept: ")
    assert tuple(listed.replace(" and ", ", ").replace("`", "").split(", ")) == names
    assert all(result.rename(name) == name for name in names)


def test_a_constant_that_is_no_name_stays_where_it_is_looked_into() -> None:
    for text in ('"shop".contains("ho")', 'size("shop") == 4', '"shop-a".split("-")[0].matches("^s")'):
        assert expression(text, SHOP)[0] == text


def test_names_in_texts_that_are_kept_are_reported() -> None:
    match = {"path": {"type": "PathPrefix", "value": "/tenants/shop"}}
    route = manifest("HTTPRoute", "r", "gateway.networking.k8s.io/v1", "shop", spec={"rules": [{"matches": [match]}]})
    result = redacted(SHOP, route)
    assert result.values[1]["spec"]["rules"][0]["matches"] == [match]
    assert result.kept == ("HTTPRoute/shop/r: `/tenants/shop` is kept, although there are names in it: `shop`",)


def test_values_of_headers_have_stand_ins_and_patterns_are_kept() -> None:
    headers = [
        {"name": "x-tenant", "value": "acme"},
        {"name": "content-type", "value": "application/json"},
        {"name": "x-key", "type": "RegularExpression", "value": "^k.*$"},
    ]
    rules = [{"matches": [{"headers": headers}]}]
    route = manifest("HTTPRoute", "r", "gateway.networking.k8s.io/v1", "shop", spec={"rules": rules})
    text = 'request.headers["x-tenant"] == "acme"'
    result = redacted(route, policy(text))
    copied = result.values[0]["spec"]["rules"][0]["matches"][0]["headers"]
    assert copied == [headers[0] | {"value": result.rename("acme")}, *headers[1:]]
    assert result.values[1]["spec"]["expression"] == text.replace("acme", result.rename("acme"))
    assert result.rename("acme") != "acme"


def test_a_namespace_with_a_meaning_of_its_own_is_kept() -> None:
    everywhere = manifest("PeerAuthentication", "strict", "security.istio.io/v1", "istio-system")
    local = manifest("PeerAuthentication", "strict", "security.istio.io/v1", "shop")
    result = redacted(SHOP, everywhere, local)
    assert [value["metadata"].get("namespace") for value in result.values] == [
        *(None, "istio-system"),
        result.rename("shop"),
    ]
    assert result.kept == (
        "PeerAuthentication/istio-system/strict: it concerns all namespaces because of its own, "
        "so `istio-system` is kept",
    )
    assert redacted(manifest("Namespace", "istio-system")).rename("istio-system") != "istio-system"


def test_a_label_that_is_a_number_still_equals_its_text() -> None:
    pod = manifest("Pod", "web", namespace="shop", labels={"port": 8080, "on": True})
    spec = {"podSelector": {"matchLabels": {"port": "8080", "on": "true"}}}
    result = redacted(pod, manifest("NetworkPolicy", "np", "networking.k8s.io/v1", "shop", spec=spec))
    labels, selector = result.values[0]["metadata"]["labels"], result.values[1]["spec"]["podSelector"]["matchLabels"]
    assert {key: str(value).lower() for key, value in labels.items()} == selector


def test_every_line_of_an_annotation_accepts_what_it_accepted() -> None:
    value = manifest("NetworkPolicy", "np", "networking.k8s.io/v1", "shop", spec={"podSelector": {}})
    value["metadata"]["annotations"] = {"tierwall.io/ignore": "TW204 see Ann\n\nTW205: why\nTW206\nTW999 x"}
    (copied,) = redacted(value).values
    first, second, third, fourth = copied["metadata"]["annotations"]["tierwall.io/ignore"].split("\n")
    assert (first, second, third) == ("TW204 redacted", "TW205 redacted", "TW206")
    assert "TW999" not in fourth


def test_a_text_that_admission_demands_is_kept_wherever_it_stands_and_named() -> None:
    definition = manifest("CustomResourceDefinition", "widgets.acme.example", "apiextensions.k8s.io/v1")
    schema = {"type": "object", "properties": {"zone": {"type": "string", "pattern": "^eu-.+$"}}}
    whole = {"type": "object", "properties": {"spec": schema}}
    definition["spec"] = {
        "group": "acme.example",
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": whole}}],
    }
    widget = manifest("Widget", "w", "acme.example/v1", "shop", spec={"zone": "eu-west"})
    result = redacted(definition, widget, manifest("Namespace", "eu-west"))
    assert result.values[1]["spec"] == {"zone": "eu-west"}
    assert result.values[2]["metadata"]["name"] == "eu-west"
    assert result.kept == ("Widget/shop/w: `spec.zone` is kept, because admission looks inside it: `eu-west`",)


def test_what_a_node_may_read_is_kept_and_the_rest_of_a_pod_is_not() -> None:
    container = {
        "name": "c",
        "image": "registry.acme.example/shop:1.2",
        "env": [
            {"name": "PIN", "value": "1234"},
            {"name": "K", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}},
        ],
    }
    volumes = [{"name": "v", "secret": {"secretName": "tls"}}, {"name": "h", "hostPath": {"path": "/srv/acme"}}]
    pod = manifest("Pod", "web", namespace="shop", spec={"containers": [container], "volumes": volumes})
    (copied,) = (result := redacted(pod)).values
    reference = {"valueFrom": {"secretKeyRef": {"name": result.rename("key")}}}
    assert copied["spec"] == {
        "containers": [{"name": result.rename("c"), "env": [{}, reference]}],
        "volumes": [{"secret": {"secretName": result.rename("tls")}}, {}],
    }


def test_a_pattern_that_stand_ins_match_as_well_keeps_nothing() -> None:
    got, result = expression('request.namespace.matches("^[a-z0-9-]+$")', SHOP)
    assert not result.kept
    assert result.rename("shop") != "shop"
    assert got == 'request.namespace.matches("^[a-z0-9-]+$")'


def test_a_text_that_is_no_expression_stays_none() -> None:
    got, _ = expression("request.namespace = 'shop' (", SHOP)
    assert "shop" not in got
    assert got.endswith(" ?")


@pytest.mark.parametrize("seed", seeds(8))
def test_no_name_is_left(seed: int) -> None:
    rng = Random(seed)
    objects = [*api_clusters.cluster(rng, False), *gateway_clusters.cluster(rng), *tool_worlds.World(seed).objects]
    before = snapshot_of(objects)
    result = redact(before)
    assert redact(before).values == result.values
    for resource, value in zip(before, result.values, strict=True):
        identity = {resource.name, resource.namespace, *resource.labels.values()} - {"default", "kube-system", ""}
        metadata = value["metadata"]
        assert identity.isdisjoint({metadata["name"], metadata.get("namespace"), *metadata.get("labels", {}).values()})


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_names_keep_their_order(data: st.DataObject) -> None:
    part = st.text("ab01", min_size=1, max_size=3) | st.sampled_from(["default", "kube", "system", "node", "lease"])
    parts = st.lists(part, min_size=1, max_size=3)
    name = st.tuples(parts, st.sampled_from("-.:_@")).map(lambda drawn: drawn[1].join(drawn[0]))
    names = data.draw(st.lists(name, min_size=2, max_size=12, unique=True))
    spaces = data.draw(st.lists(st.sampled_from(names), min_size=len(names), max_size=len(names)))
    resources = [
        Resource("", "v1", "ConfigMap", space, text, {"metadata": {"name": text, "namespace": space}})
        for space, text in zip(spaces, names, strict=True)
    ]
    copied = [value["metadata"] for value in redact(resources).values]
    for key in (lambda space, text: (space, text), lambda space, text: f"{space}/{text}"):
        before = sorted(range(len(names)), key=lambda place: key(spaces[place], names[place]))
        after = sorted(range(len(names)), key=lambda place: key(copied[place]["namespace"], copied[place]["name"]))
        assert before == after


@settings(max_examples=examples(50), deadline=None)
@given(st.sets(st.text("abz09", min_size=1, max_size=4)), st.sets(st.text("abz09", min_size=1, max_size=4)))
def test_stand_ins_sort_as_tokens_do(tokens: set[str], kept: set[str]) -> None:
    table = stand_ins(tokens - kept, kept)
    assert not (tokens | kept) & set(table.values())
    every = sorted(tokens | kept)
    assert sorted(every, key=lambda token: table.get(token, token)) == every


_V4 = st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address)
_V6 = st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address)


def test_only_the_addresses_that_an_expression_looks_into_are_kept() -> None:
    users = ("10.1.2.3", "10.1.9.9", "192.0.2.7")
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name} for name in users]
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}
    binding = manifest("ClusterRoleBinding", "b", "rbac.authorization.k8s.io/v1", roleRef=ref, subjects=subjects)
    text = 'request.userInfo.username.startsWith("10.1.2")'
    _, result = expression(text, binding)
    assert result.rename("10.1.2.3") == "10.1.2.3"
    assert result.kept == (
        f"ClusterAuthorizationPolicy/guard: `{text}` looks inside names, so these are kept: `10.1.2` and `10.1.2.3`",
    )
    others = [result.rename(name) for name in users[1:]]
    assert not set(others) & set(users)
    # It is still in the block of the address that is kept, and not in its smaller blocks.
    assert ipaddress.ip_address(others[0]) in ipaddress.ip_network("10.1.0.0/16")
    assert ipaddress.ip_address(others[0]) not in ipaddress.ip_network("10.1.2.0/24")


@settings(max_examples=examples(50), deadline=None)
@given(st.sets(_V4, min_size=2, max_size=6), st.integers(0, 32))
def test_addresses_that_are_kept_keep_their_blocks(addresses: set[Any], length: int) -> None:
    first, *others = sorted(addresses)
    translator = address_translator(map(str, addresses), b"key", [str(first)])
    assert translator.translate(str(first)) == str(first)
    block = ipaddress.ip_network((first, length), strict=False)
    assert translator.translate(str(block)) == str(block)
    for other in others:
        assert (ipaddress.ip_address(translator.translate(str(other))) in block) == (other in block)


@settings(max_examples=examples(100), deadline=None)
@given(st.data(), st.one_of(_V4, _V6))
def test_blocks_contain_what_they_contained(data: st.DataObject, address: Any) -> None:
    size = address.max_prefixlen
    length, other_length = data.draw(st.integers(0, size)), data.draw(st.integers(0, size))
    near = type(address)(int(address) ^ (1 << data.draw(st.integers(0, size - 1))))
    block = ipaddress.ip_network((near, length), strict=False)
    other = ipaddress.ip_network((address, other_length), strict=False)
    translator = address_translator([str(address), str(block), str(other)], b"key")
    new_address = ipaddress.ip_address(translator.translate(str(address)))
    new_block, new_other = (ipaddress.ip_network(translator.translate(str(part))) for part in (block, other))
    assert new_address.version == address.version
    assert (new_block.prefixlen, new_other.prefixlen) == (length, other_length)
    assert (new_address in new_block) == (address in block)
    assert new_block.overlaps(new_other) == block.overlaps(other)
    assert new_address.is_loopback == address.is_loopback
    assert new_address.is_multicast == address.is_multicast
    assert new_address.is_link_local == address.is_link_local
    # Two halves stay the halves of one block.
    for network in (block, other):
        if network.prefixlen < size:
            whole, *halves = (translator.translate(str(part)) for part in (network, *network.subnets()))
            assert sorted(halves) == sorted(map(str, ipaddress.ip_network(whole).subnets()))


def test_the_page_shows_what_is_written() -> None:
    page = (ROOT / "docs" / "clusters.md").read_text().partition("# before ")[2].partition("```")[0]
    width = page.index("# after") + len("# before ")
    lines = page.split("\n")[1:]
    before = yaml.safe_load("\n".join(line[:width] for line in lines))
    after = yaml.safe_load("\n".join(line[width:] for line in lines))
    (copied,) = redacted({"apiVersion": "networking.k8s.io/v1", **before}).values
    assert copied == {"apiVersion": "networking.k8s.io/v1", **after}


def many_names(number: int) -> list[Object]:
    """Return so many names that each stand-in is longer than a letter."""
    return [manifest("ConfigMap", f"x{place}y", namespace="shop") for place in range(number)]


OTHERS = many_names(150)


def test_a_long_name_has_one_stand_in_wherever_it_stands() -> None:
    name = "-".join("abcdefghijklmnopqrstuvwxyz01234")
    assert len(name) == 61
    host = f"{name}.acme.example"
    account = manifest("ServiceAccount", name, namespace="shop", labels={"app": name})
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"system:serviceaccount:shop:{name}"}]
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    binding = manifest(
        "ClusterRoleBinding", f"{name}:x", "rbac.authorization.k8s.io/v1", roleRef=ref, subjects=subjects
    )
    route = manifest("HTTPRoute", name, "gateway.networking.k8s.io/v1", "shop", spec={"hostnames": [host, f"*.{host}"]})
    result = redacted(account, binding, route, *many_names(1_000))
    copied, bound, routed, *_ = result.values
    short = copied["metadata"]["name"]
    assert len(short) <= 63
    assert list(copied["metadata"]["labels"].values()) == [short]
    shop = copied["metadata"]["namespace"]
    assert bound["subjects"][0]["name"] == f"system:serviceaccount:{shop}:{short}"
    assert (bound["roleRef"]["name"], bound["metadata"]["name"].partition(":")[0]) == (short, short)
    first, below = routed["spec"]["hostnames"]
    assert (first.partition(".")[0], below) == (short, f"*.{first}")
    assert result.rename(f"spiffe://cluster.local/ns/shop/sa/{name}").endswith(f"/sa/{short}")
    assert not result.kept


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_long_names_keep_their_order(data: st.DataObject) -> None:
    part = st.text("ab", min_size=1, max_size=2)
    long = st.lists(part, min_size=18, max_size=20).map("-".join)
    names = sorted(set(data.draw(st.lists(long | st.lists(part, min_size=1, max_size=3).map("-".join), max_size=6))))
    values = redacted(*OTHERS, *(manifest("ConfigMap", name, namespace="shop") for name in names)).values
    copied = [value["metadata"]["name"] for value in values[len(OTHERS) :]]
    assert sorted(copied) == copied
    assert len(set(copied)) == len(names)
