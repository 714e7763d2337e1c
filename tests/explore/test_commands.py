"""The command at the foot of a page prints the document of the page (docs/explorer.md#addresses)."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests import ROOT
from tests.explore.conftest import EXAMPLES, explored_of
from tierwall.cli.command import read_params
from tierwall.cli.explorer import ExplorerParams, ui
from tierwall.cli.main import root
from tierwall.explore.page import ExploredWorld, Page
from tierwall.explore.site import page_at

DELEGATION = ROOT / "examples/gateway/delegation"


@pytest.fixture(scope="module")
def world() -> ExploredWorld:
    """All examples, with the options that read them again."""
    paths = (*EXAMPLES, DELEGATION)
    options = shlex.join(part for path in paths for part in ("-f", str(path)))
    return replace(explored_of(*paths), options=options)


def page_of(explored: ExploredWorld, address: str) -> Page:
    parts = urlsplit(address)
    query = {name: tuple(values) for name, values in parse_qs(parts.query).items()}
    return page_at(explored, parts.path, query)[0]


def printed(command: str) -> Any:
    done = CliRunner().invoke(root, [*shlex.split(command)[1:], "-o", "json"])
    assert done.exit_code in (0, 3, 4, 5), done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "address",
    [
        "/ask?q=shop/web -> shop/db:5432",
        "/ask?q=10.0.0.1 -> shop/db:53/udp",
        "/ask?q=alice create pods in dev",
        "/ask?plane=api&user=alice&groups=a&groups=b&verb=get&path=/healthz",
        "/ask?q=shopper refund",
        "/ask?q=shopper tools/list on payment-service",
        "/ask?plane=tool&gateway=prod/prod-gateway&backend=XBackend/prod/payment-service&caller=agents/shopper"
        '&method=tools/call&tool=refund&arguments={"amount": 5}',
        "/ask?q=settings infra/edge",
        "/ask?plane=gateway&gateway=infra/edge&parents=HTTPRoute/infra/shop%23teams&route=HTTPRoute/team/cart&rule=0",
        "/ask?plane=gateway&gateway=infra/edge&profile=agentgateway&phase=PreRouting",
        "/network?from=shop/web, shop/api&port=9090",
        "/tools?caller=agents/shopper",
        "/tools?caller=agents/shopper&backend=XBackend/prod/payment-service&gateway=prod/prod-gateway",
        "/settings",
        "/permissions?user=alice&group=devs&namespace=dev",
        "/findings",
        "/findings?code=TW203",
    ],
)
def test_the_command_of_a_page_prints_its_document(world: ExploredWorld, address: str) -> None:
    page = page_of(world, address)
    assert page.command
    assert printed(page.command) == json.loads(page.json())


def test_what_no_option_says_has_no_command(world: ExploredWorld) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "dev"}}
    asked = f"/ask?plane=api&user=alice&verb=create&resource=pods&namespace=dev&object={json.dumps(pod)}"
    page = page_of(world, asked)
    assert (page.status, page.command) == (200, "")
    assert page_of(world, "/findings?severity=warning").command == ""
    tool = "/ask?plane=tool&gateway=prod/prod-gateway&backend=XBackend/prod/payment-service&tool=refund"
    assert page_of(world, tool).command == ""
    # There, -n would be the namespace of the request.
    named = replace(world, options=f"{world.options} -n team")
    assert page_of(named, "/ask?q=alice get pods").command == page_of(named, "/permissions?user=alice").command == ""
    assert page_of(named, "/ask?q=shop/web -> shop/db:5432").command
    # A change lies over files and a cluster together, which `diff` does not compare.
    for options, command in (
        ("--context prod", "tierwall diff --context prod -f change.yaml"),
        ("-f over/ --context prod", ""),
        ("-f manifests/", ""),
    ):
        assert page_of(replace(world, options=options), "/change").command == command


def test_links_of_settings_name_the_whole_place(world: ExploredWorld) -> None:
    answers = list(world.world.effective_everywhere())
    delegated = [answer.detail.place for answer in answers if "HTTPRoute/infra/shop rule" in answer.detail.place]
    assert any("HTTPRoute/team/cart" in place for place in delegated)
    body = page_of(world, "/settings").body
    links = [part.partition('"')[0].replace("&amp;", "&") for part in body.split('href="') if "plane=gateway" in part]
    assert [page_of(world, link).document for link in links] == json.loads(page_of(world, "/settings").json())["items"]


def test_documents_have_what_pages_leave_out(tmp_path: Path) -> None:
    gateway = "{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, namespace: a}"
    gateway += ", spec: {gatewayClassName: c, listeners: [{name: l, port: 80, protocol: HTTP}]}}\n"
    route = "---\n{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: r%d, namespace: a}"
    route += ", spec: {parentRefs: [{name: g}], rules: [{}]}}\n"
    (tmp_path / "all.yaml").write_text(gateway + "".join(route % number for number in range(45)))
    explored = explored_of(tmp_path)
    total = len(list(explored.world.effective_everywhere()))
    assert total > 40
    for number, (before, after) in enumerate(((False, True), (True, True), (True, False)), 1):
        page = page_of(explored, f"/settings?page={number}")
        assert ("Previous" in page.body, "Next" in page.body) == (before, after)
        assert len(json.loads(page.json())["items"]) == total


def test_a_narrowed_list_of_findings_is_narrow_in_every_form(world: ExploredWorld) -> None:
    everything = json.loads(page_of(world, "/findings").json())
    for name, key in (("severity", "level"), ("code", "code"), ("policy", "object")):
        for value in {finding[key] for finding in everything["diagnostics"]}:
            narrow = json.loads(page_of(world, f"/findings?{name}={value}").json())
            expected = [finding for finding in everything["diagnostics"] if finding[key] == value]
            assert narrow["diagnostics"] == expected
            assert sum(narrow[word] for word in ("errors", "warnings", "notes")) == len(expected)


def test_the_kubectl_command_names_the_cluster_that_was_read(world: ExploredWorld) -> None:
    def of(*words: str) -> str:
        params = read_params(ui.make_context("ui", [*words]))
        assert isinstance(params, ExplorerParams)
        return params.kubectl

    assert of("manifests") == "kubectl"
    assert of("--context", "a b", "-n", "team", "over") == "kubectl --context 'a b' -n team"
    given = ("--context", "prod", "--kubeconfig", "config")
    assert of(*given) == "kubectl --context prod --kubeconfig config"
    page = page_of(replace(world, kubectl=of(*given)), "/change")
    applied = "kubectl --context prod --kubeconfig config apply"
    assert f"{applied} --dry-run=server -f change.yaml &amp;&amp; {applied} -f change.yaml" in page.body
