"""The rules about who may look: token, names, other sites, bodies and headers (docs/explorer.md#safety)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.labs.explorer_server import ExplorerLab
from tierwall.cli.main import root
from tierwall.core.reference import Reference
from tierwall.explore.change import MAX_BYTES
from tierwall.explore.page import policy_address
from tierwall.serve.explorer.access import HEADERS, Access
from tierwall.serve.explorer.followed import ExplorerFollower
from tierwall.serve.explorer.run import ExplorerServer, ExplorerSettings

PAGES = ("/", "/ask?q=shop", "/network", "/static/explorer.css", "/follow", "/policy/A/b", "/nowhere")


@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_shown_without_the_token(lab: ExplorerLab, path: str) -> None:
    answer = lab.stranger.get(path)
    assert answer.status_code == 403
    assert "token" in answer.text
    other = {"Cookie": f"{lab.server.access.cookie}=wrong"}
    assert lab.stranger.get(path, headers=other).status_code == 403


def test_the_token_becomes_a_cookie_and_leaves_the_address(lab: ExplorerLab) -> None:
    answer = lab.stranger.get(f"/network?port=80&token={lab.server.access.token}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/network?port=80")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"tierwall-{lab.server.access.port}={lab.server.access.token};")
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    lab.stranger.cookies.clear()
    # The token never leads to another server.
    answer = lab.stranger.get(f"{lab.server.origin}//evil.test/x?token={lab.server.access.token}")
    assert answer.headers["location"] == "/evil.test/x"
    lab.stranger.cookies.clear()


def test_only_its_own_names_are_answered(lab: ExplorerLab) -> None:
    port = lab.server.access.port
    for host in (
        f"127.0.0.1:{port}",
        f"localhost:{port}",
        f"LOCALHOST:{port}",
        "explorer.test",
        f"explorer.test:{port}",
    ):
        assert lab.client.get("/", headers={"Host": host}).status_code == 200, host
    for host in ("evil.test", f"evil.test:{port}", "localhost", "127.0.0.1", f"127.0.0.1.evil.test:{port}", ""):
        assert lab.client.get("/", headers={"Host": host}).status_code == 403, host


NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


def test_other_sites_may_link_here_and_nothing_else(lab: ExplorerLab) -> None:
    for site in ("cross-site", "same-site"):
        assert lab.client.get("/", headers={"Sec-Fetch-Site": site, **NAVIGATION}).status_code == 200
        frame = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
        assert lab.client.get("/", headers={"Sec-Fetch-Site": site, **frame}).status_code == 403
        assert lab.client.get("/network.json", headers={"Sec-Fetch-Site": site}).status_code == 403
        sent = {"Sec-Fetch-Site": site, **NAVIGATION, "Content-Type": "application/yaml"}
        assert lab.client.post("/change", headers=sent, content="a").status_code == 403
    for site in ("same-origin", "none"):
        assert lab.client.get("/index.json", headers={"Sec-Fetch-Site": site}).status_code == 200


def test_headers_that_decide_stand_once(lab: ExplorerLab) -> None:
    origin = lab.server.origin
    for name, values in (("Origin", (origin, "http://evil.test")), ("Sec-Fetch-Site", ("same-origin", "cross-site"))):
        pairs = [("Content-Type", "application/yaml"), *((name, value) for value in values)]
        assert lab.client.post("/change", content=b"", headers=pairs).status_code == 400, name
        assert lab.client.post("/change", content=b"", headers=pairs[:2]).status_code == 200, name


def test_changes_come_from_here_or_from_a_program(lab: ExplorerLab) -> None:
    yaml = {"Content-Type": "application/yaml"}
    assert lab.client.post("/change", headers={**yaml, "Origin": lab.server.origin}, content="").status_code == 200
    assert lab.client.post("/change", headers=yaml, content="").status_code == 200
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "null"}
    for site, status in (("same-origin", 200), ("cross-site", 403), ("none", 403)):
        assert lab.client.post("/change", headers={**form, "Sec-Fetch-Site": site}).status_code == status
    for origin in ("https://evil.test", "null", lab.server.origin.replace("http", "https")):
        assert lab.client.post("/change", headers={**yaml, "Origin": origin}, content="").status_code == 403


def test_only_a_change_has_a_body_of_bounded_size(lab: ExplorerLab) -> None:
    assert lab.client.post("/network", content="a").status_code == 405
    assert lab.client.put("/change", content="a").status_code == 405
    assert lab.client.request("GET", "/network", content="a").status_code == 400
    yaml = {"Content-Type": "application/yaml"}
    assert lab.client.post("/change", headers=yaml, content=b" " * (MAX_BYTES + 1)).status_code == 413
    in_pieces = (b" " * (1 << 20) for _ in range(5))
    assert lab.client.post("/change", headers=yaml, content=in_pieces).status_code == 413
    assert lab.client.post("/change", headers={"Content-Type": "text/plain"}, content="a").status_code == 415


def test_every_answer_has_the_headers(lab: ExplorerLab) -> None:
    answers = [
        lab.client.get("/"),
        lab.stranger.get("/"),
        lab.client.get("/static/explorer.js"),
        lab.client.get("/none"),
    ]
    answers += [lab.client.get("/network.json"), lab.client.get("/", headers={"Host": "evil.test"})]
    # Word for word: a policy that is looser by one word is another policy.
    assert HEADERS["Content-Security-Policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )
    for answer in answers:
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_pages_name_no_other_server_and_have_no_inline_code(lab: ExplorerLab) -> None:
    for path in ("/", "/network", "/tools", "/settings", "/findings", "/change"):
        text = lab.client.get(path).text
        assert "style=" not in text
        assert "<style" not in text
        assert "onclick" not in text
        assert text.count("<script") == text.count('<script src="/static/')
        named = re.findall(r' (?:href|src|action)="([^"]*)"', text)
        assert [address for address in named if not re.match(r"/(?!/)|#main$", address)] == []


@given(st.text(), st.text())
def test_the_token_is_the_only_token(text: str, cookies: str) -> None:
    access = Access.of("127.0.0.1", 80)
    assert access.is_token(access.token)
    assert not access.is_token(text)
    assert not access.has_token(cookies)
    assert access.has_token(f"a=b; {access.cookie}={access.token}")


def test_every_answer_has_the_headers_whatever_is_asked(lab: ExplorerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    many = "&".join(f"field{number}=1" for number in range(50))
    monkeypatch.setattr("tierwall.serve.explorer.app.page_at", lambda *words: 1 / 0)
    for status, answer in (
        (405, lab.client.put("/change", content="a: b")),
        (405, lab.client.request("OPTIONS", "/change", headers={"Origin": "http://evil.test"})),
        (405, lab.client.request("BREW", "/")),
        (400, lab.client.post("/change", content=many, headers=form)),
        (500, lab.client.get("/findings")),
        (403, lab.client.get("/", headers={"Upgrade": "websocket", "Connection": "Upgrade", "Host": "evil.test"})),
    ):
        assert answer.status_code == status
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "access-control-allow-origin" not in answer.headers


def test_cookies_of_other_servers_keep_nobody_out(lab: ExplorerLab) -> None:
    name, token = lab.server.access.cookie, lab.server.access.token
    ours = f"{name}={token}"
    for cookies in (
        f'a b="; {ours}',
        f'{{"json": [1, 2]}}; {ours}',
        f"{ours}; {name}=planted",
        f"{name}=planted; {ours}",
        f"; ;=;{ours};;",
    ):
        assert lab.stranger.get("/index.json", headers={"Cookie": cookies}).status_code == 200, cookies
    several = [("Cookie", "theirs=1"), ("Cookie", ours)]
    assert lab.stranger.get("/index.json", headers=several).status_code == 200
    for cookies in (f"x{ours}", f"{name}-1={token}", f'{name}="{token}"', f"{name} {token}", f"{name}={token}x", "="):
        assert lab.stranger.get("/index.json", headers={"Cookie": cookies}).status_code == 403, cookies


@pytest.mark.parametrize("name", ["", "a b", "http://a", "a/b", "a:b", "*", "[::1", ".a", "a..b"])
def test_names_of_the_server_are_names(name: str) -> None:
    ended = CliRunner().invoke(root, ["ui", "--no-open", "--host", name])
    assert ended.exit_code == 2
    assert "--host takes a name" in ended.output


def test_the_printed_address_leads_to_the_server() -> None:
    follower = ExplorerFollower("", "")
    for host, names, shown in (("0.0.0.0", ("my.host",), "my.host"), ("127.0.0.1", ("my.host",), "127.0.0.1")):
        settings = ExplorerSettings(host=host, port=0, hosts=names)
        server = ExplorerServer(follower, settings)
        with server.listening:
            assert server.origin == f"http://{shown}:{server.access.port}"


def test_a_body_with_two_lengths_is_refused(lab: ExplorerLab) -> None:
    headers = {"Content-Type": "application/yaml", "Content-Length": "3", "Transfer-Encoding": "chunked"}
    assert lab.client.post("/change", headers=headers, content=iter([b"a"])).status_code == 400


def test_signs_in_names_do_not_end_an_address(tmp_path: Path) -> None:
    name = "a?b#c d%e"
    role = "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: '%s'}, rules: []}"
    (tmp_path / "role.yaml").write_text(role % name)
    lab = ExplorerLab(tmp_path)
    try:
        path = policy_address(Reference("ClusterRole", "", name))
        page = lab.client.get(path)
        assert page.status_code == 200
        (link,) = re.findall(r'href="([^"]*)">This page as JSON', page.text)
        assert lab.client.get(link).json()["object"] == f"ClusterRole/{name}"
        admitted = lab.stranger.get(f"{path}?by=x&token={lab.server.access.token}")
        assert (admitted.status_code, admitted.headers["location"]) == (303, f"{path}?by=x")
    finally:
        lab.close()
