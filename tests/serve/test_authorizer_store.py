"""Policies in force: bad objects closed, the last good chain kept, superseded sets remembered; the keys of seals."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.labs.authorizer_server import KEY, POLICIES, Served, access
from tests.labs.waiting import PATIENCE_S
from tierwall.api.authorizers.cel_policies import CelAuthorizer
from tierwall.core.diagnostics import InputError
from tierwall.resources.load import Loader
from tierwall.serve.authorizer.issuer import derived_key, sealing_key
from tierwall.serve.authorizer.policies import PolicyFollower, PolicySet
from tierwall.serve.authorizer.reviews import AnswerCache
from tierwall.serve.authorizer.run import AuthorizerServer, AuthorizerSettings
from tierwall.serve.files import FileSource
from tierwall.serve.follower import LoadOutcome

GOOD = [("p", "Allow", 'request.verb == "get"')]


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path, GOOD)


CONFIGURATION = """\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers: [{type: %s, name: x%s}]
"""
WEBHOOK = ", webhook: {connectionInfo: {kubeConfigFile: /k}, matchConditions: [{expression: 'a =='}]}"
POLICY = """\
apiVersion: tierwall.io/v1alpha1
kind: ClusterAuthorizationPolicy
metadata: {name: broken}
spec: {effect: %s, expression: '%s'}
"""


GRANT_LIST = "---\n" + POLICY.replace("broken", "list") % ("Allow", 'request.verb == "list"')
CHAINS = [(CONFIGURATION % ("Telepathy", ""), "Telepathy"), (CONFIGURATION % ("Webhook", WEBHOOK), "a CEL expression")]


def is_allowed(served: Served, verb: str) -> bool:
    return bool(served.post("/authorize", access(verb=verb)).json["status"]["allowed"])


@pytest.mark.parametrize(("text", "word"), CHAINS)
def test_a_broken_chain_leaves_the_last_good_one_in_force_over_the_new_policies(
    served: Served, text: str, word: str
) -> None:
    (served.folder / "broken.yaml").write_text(text + GRANT_LIST)
    assert served.reload()
    assert (is_allowed(served, "get"), is_allowed(served, "list")) == (True, True)
    served.write([])
    assert served.reload(), "a revocation counts, whatever is wrong with the chain"
    assert (is_allowed(served, "get"), is_allowed(served, "list")) == (False, True)
    ready = served.get("/readyz")
    assert ready.status == 503, "the newest chain is not in force"
    assert ready.json["stale"] is True
    assert any(word in str(problem) for problem in ready.json["problems"])
    assert "tierwall_authorizer_policies_stale 1.0" in served.get("/metrics").body.decode()
    (served.folder / "broken.yaml").unlink()
    served.reload()
    ready = served.get("/readyz")
    assert (ready.status, ready.json["stale"]) == (200, False)


def test_two_chains_kept_over_the_same_objects_are_different_sets(served: Served) -> None:
    file = served.folder / "chain.yaml"
    revisions = set()
    for name in ("policies", "others"):
        file.write_text(CONFIGURATION.replace("x%s", "%s") % ("CEL", name))
        served.reload()
        file.write_text(CHAINS[0][0])
        served.reload()
        revisions.add(served.follower.current.revision)
    assert len(revisions) == 2


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (POLICY % ("Perhaps", 'request.verb == "list"'), "Perhaps"),
        (POLICY % ("Allow", "request.verb =="), "expression"),
        (POLICY % ("Allow", "true") + "nonsense: 1\n", "nonsense"),
    ],
)
def test_an_object_with_an_error_fails_closed_and_the_others_are_in_force(served: Served, text: str, word: str) -> None:
    (served.folder / "broken.yaml").write_text(text)
    served.write([*GOOD, ("q", "Allow", 'request.verb == "watch"')])
    assert served.reload()
    verbs = ("get", "watch", "list", "delete")
    assert [is_allowed(served, verb) for verb in verbs] == [True, True, False, False]
    ready = served.get("/readyz")
    assert (ready.status, ready.json["stale"]) == (200, False), "what is closed for its own error is in force"
    assert any(word in str(problem) and "broken.yaml" in str(problem) for problem in ready.json["problems"])
    page = served.get("/metrics").body.decode()
    assert "tierwall_authorizer_policies_stale 0.0" in page
    assert "tierwall_authorizer_object_errors 0.0" not in page


def test_everything_that_is_wrong_is_reported_at_once(served: Served) -> None:
    texts = ["kind: Text", POLICY % ("Perhaps", "true"), CONFIGURATION % ("Webhook", WEBHOOK)]
    for number, text in enumerate(texts):
        (served.folder / f"broken-{number}.yaml").write_text(text)
    assert served.reload()
    said = " ".join(problem.message for problem in served.follower.newest_errors)
    assert all(word in said for word in ("apiVersion", "Perhaps", "a CEL expression")), said


def test_policies_that_vanish_are_a_broken_edit(served: Served) -> None:
    (served.folder / "policies.yaml").unlink()
    served.folder.rmdir()
    assert not served.reload()
    assert served.follower.refusal
    assert served.get("/readyz").status == 503


def test_a_start_with_broken_policies_serves_the_good_ones(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text(POLICY % ("Allow", "1 +"))
    served = Served(tmp_path, GOOD)
    assert (is_allowed(served, "get"), is_allowed(served, "list")) == (True, False)
    ready = served.get("/readyz")
    assert ready.status == 200
    assert "broken.yaml" in str(ready.json["problems"])


def test_nothing_starts_with_a_chain_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(CHAINS[0][0])
    with pytest.raises(InputError, match="Telepathy"):
        PolicyFollower().begin(FileSource(Loader([str(tmp_path)])))


def test_the_revision_depends_on_content_not_on_files(tmp_path: Path) -> None:
    folder, other_folder = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    other_folder.mkdir()
    first, second = Served(folder, POLICIES), Served(other_folder, reversed(POLICIES))
    assert first.follower.current.revision == second.follower.current.revision
    second.write(POLICIES[:2])
    assert second.reload()
    assert first.follower.current.revision != second.follower.current.revision


def test_superseded_policies_are_kept_for_the_grace_period(served: Served) -> None:
    before = served.follower.current
    served.write([*GOOD, ("q", "Allow", 'request.verb == "list"')])
    assert served.reload()
    served.clock.now += 329
    assert list(served.follower.retained) == [before]
    served.clock.now += 2
    assert not list(served.follower.retained)


def test_an_edit_within_a_clock_tick_counts_even_if_time_and_size_stay(served: Served) -> None:
    file = served.folder / "policies.yaml"
    for verb in ("put", "get", "put"):
        before = file.stat()
        served.write([("p", "Allow", f'request.verb == "{verb}"')])
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = file.stat()
        assert (after.st_mtime_ns, after.st_size, after.st_ino) == (before.st_mtime_ns, before.st_size, before.st_ino)
        assert served.reload()
        assert served.post("/authorize", access(verb=verb)).json["status"]["allowed"] is True


def test_rewriting_the_same_files_is_not_a_change(served: Served) -> None:
    served.write(GOOD)
    assert served.follower.next_load(served.files) is None
    assert served.follower.outcomes == {"taken": 0, "unchanged": 0, "refused": 0}


def test_policies_that_were_in_force_twice_are_kept_once(served: Served) -> None:
    other = [*GOOD, ("q", "Allow", 'request.verb == "list"')]
    for policies in (other, GOOD, other, GOOD):
        served.write(policies)
        assert served.reload()
        served.clock.now += 100
    assert [older.policies for older in served.follower.retained] == [2, 1]
    served.clock.now += 131
    assert [older.policies for older in served.follower.retained] == [2], "for the longer time"


def test_superseded_policies_share_what_has_not_changed_and_expire(served: Served) -> None:
    served.write([*GOOD, ("q", "Allow", 'request.verb == "list"')])
    assert served.reload()
    before, after = (_expressions(policies) for policies in (*served.follower.retained, served.follower.current))
    assert before["p"] is after["p"]
    gone = weakref.ref(served.follower.retained[0].chain)
    gc.disable()
    try:
        served.clock.now += 331
        served.follower.superseded.expire()
        assert gone() is None
    finally:
        gc.enable()


def _expressions(policies: PolicySet) -> dict[str, object]:
    [cel] = [member for member in policies.chain.members() if isinstance(member, CelAuthorizer)]
    return {policy.id: policy.parsed for policy in cel.policies}


def test_without_the_bridge_nothing_superseded_is_kept_and_no_change_waits(served: Served) -> None:
    for bridge in (True, False):
        files = FileSource(Loader([str(served.folder)]))
        server = AuthorizerServer(files, AuthorizerSettings(bridge=bridge))
        served.write([("p", "Allow", f'request.verb == "{bridge}"')])
        load = server.follower.next_load(files)
        assert load is not None
        assert server.follower.accept(load) is LoadOutcome.TAKEN
        assert len(server.follower.retained) == int(bridge)


def test_an_edit_is_taken_once_however_often_it_is_looked_at(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> AuthorizerServer:
        files = FileSource(Loader([str(served.folder)]))
        server = AuthorizerServer(files, AuthorizerSettings())
        following = asyncio.create_task(server.follow())
        served.write([*GOOD, ("q", "Allow", 'request.verb == "list"')])
        async with asyncio.timeout(PATIENCE_S):
            while not server.follower.outcomes[LoadOutcome.TAKEN]:
                files.nudge()
                await asyncio.sleep(0.01)
        for _ in range(3):
            files.nudge()
            await asyncio.sleep(0.05)
        server.stop.set()
        await following
        return server

    server = asyncio.run(main())
    assert server.follower.outcomes == {"taken": 1, "unchanged": 0, "refused": 0}
    assert capsys.readouterr().err.count("policies taken") == 1


# keys


def test_the_sealing_key_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "seal.key"
    file.write_bytes(KEY + b"\n")
    assert sealing_key(str(file), None) == KEY
    file.write_bytes(b"short")
    with pytest.raises(InputError, match="at least 16 bytes"):
        sealing_key(str(file), None)
    with pytest.raises(InputError, match="cannot be read"):
        sealing_key(str(tmp_path / "none"), None)


def test_replicas_with_the_same_tls_key_derive_the_same_sealing_key() -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    forms = [
        private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        for form in (serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL)
    ]
    assert derived_key(forms[0]) == derived_key(forms[1])
    assert len(derived_key(forms[0])) == 32
    assert sealing_key(None, None) != sealing_key(None, None), "a random one"
    with pytest.raises(InputError, match="private key"):
        derived_key(b"no key")


# the cache of answers


def test_an_answer_is_kept_only_while_policies_and_key_are_in_force(tmp_path: Path) -> None:
    served = Served(tmp_path, POLICIES)
    review = access(conditionalAuthorization={"mode": "HumanReadable"})
    first = served.post("/authorize", review)
    assert served.post("/authorize", review).body == first.body
    assert len(served.records()) == 2, "each answer is logged"
    served.issuer.rekey(b"another key of some length")
    sealed = served.post("/authorize", review)
    assert sealed.body != first.body
    chain = first.json["status"]["conditionsChain"]
    kind = {"apiVersion": "authorization.k8s.io/v1alpha1", "kind": "AuthorizationConditionsReview"}
    value = {"spec": {"storageClassName": "dev"}}
    back = served.post("/conditions", {**kind, "request": {"conditionSets": chain, "object": value}})
    assert back.json["response"]["allowed"] is True, "conditions under the last key are still taken"
    served.write(POLICIES[1:])
    assert served.reload()
    assert "conditionsChain" not in served.post("/authorize", review).json["status"]


def test_the_cache_of_answers_is_bounded_and_skips_long_requests() -> None:
    kept: AnswerCache[int] = AnswerCache(limit=10)
    kept.get("state", b"")
    for n in range(1000):
        kept.put("state", str(n).encode(), n)
        assert kept.get("state", b"0") in (0, None)
    assert kept.get("state", b"999") == 999
    assert kept.get("state", b"1") is None
    kept.put("state", b"x" * 5000, 1)
    assert kept.get("state", b"x" * 5000) is None
    assert kept.get("another", b"999") is None
