"""`tierwall run` that cannot start reports every problem, exits with 1 and starts nothing."""

from __future__ import annotations

import os
import re
import shutil
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from examples.agents import certificates
from tests import ROOT
from tierwall.cli.main import root
from tierwall.core.diagnostics import InputError
from tierwall.serve.certificate_files import CertificateFiles

EXAMPLE = ROOT / "examples" / "agents"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the manifests of the example with their certificates."""
    shutil.copytree(EXAMPLE / "manifests", tmp_path / "m")
    authority = certificates.Authority()
    (tmp_path / "m" / "tls.yaml").write_text(certificates.manifests(authority, authority.server("localhost")))
    return tmp_path / "m"


def run(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(root, ["run", "--address=127.0.0.1", "--decision-log=/dev/null", *arguments], input=input)


def test_a_missing_secret(folder: Path) -> None:
    (folder / "tls.yaml").unlink()
    result = run(str(folder))
    assert result.exit_code == 1
    assert "error[TW653]" in result.stderr
    assert "Secret" in result.stderr
    assert "agents-tls" in result.stderr


def test_a_key_of_another_certificate(folder: Path) -> None:
    authority = certificates.Authority()
    first, other = authority.server("localhost"), authority.server("localhost")
    mixed = certificates.Pair(first.certificate, other.key)
    (folder / "tls.yaml").write_text(certificates.manifests(authority, mixed))
    result = run(str(folder))
    assert result.exit_code == 1
    assert "`tls.key` is not the key of `tls.crt`" in result.stderr


def test_a_key_of_another_certificate_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    authority = certificates.Authority()
    (tmp_path / "c.pem").write_bytes(authority.server("localhost").certificate)
    (tmp_path / "k.pem").write_bytes(authority.server("localhost").key)
    result = run(str(folder), f"--certificate={tmp_path}/c.pem", f"--key={tmp_path}/k.pem")
    assert result.exit_code == 1
    assert f"`{tmp_path}/k.pem` is not the key of `{tmp_path}/c.pem`" in result.stderr


@pytest.mark.parametrize("what", ["listener", "xds", "http"])
def test_a_port_in_use(folder: Path, tmp_path: Path, what: str) -> None:
    pair = certificates.Authority().server("localhost")
    (tmp_path / "pair.pem").write_bytes(pair.certificate + pair.key)
    with_tls = [f"--xds-{name}={tmp_path}/pair.pem" for name in ("certificate", "key", "client-ca")]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        options = {
            "listener": [f"--bind=shop/agents:8443=127.0.0.1:{port}"],
            "xds": ["--no-envoy", f"--xds=127.0.0.1:{port}", *with_tls],
            "http": [f"--http=127.0.0.1:{port}"],
        }[what]
        result = run(str(folder), *options)
    assert result.exit_code == 1, result.output
    assert re.search(rf"error\[TW631\]: cannot listen on `127\.0\.0\.1:{port}`.*in use", result.stderr)


def test_an_envoy_that_is_too_old(folder: Path, tmp_path: Path) -> None:
    old = tmp_path / "envoy"
    old.write_text("#!/bin/sh\necho 'envoy  version: abc/1.36.2/Clean/RELEASE/BoringSSL'\n")
    old.chmod(0o755)
    result = run(str(folder), f"--envoy={old}")
    assert result.exit_code == 1
    assert "error[TW632]: expected Envoy 1.40.0 or later, found 1.36.2" in result.stderr


def test_manifests_with_errors_are_shown_all_at_once(folder: Path) -> None:
    for name in ("orders.yaml", "platform.yaml"):
        path = folder / name
        path.write_text(path.read_text().replace("action: Allow", "action: Alow"))
    (folder / "tls.yaml").unlink()
    result = run(str(folder))
    assert result.exit_code == 1
    assert "error[TW653]" in result.stderr
    assert result.stderr.count("error[TW104]") == 2


def test_a_missing_folder(tmp_path: Path) -> None:
    result = run(str(tmp_path / "none"))
    assert result.exit_code == 1
    assert "error[TW001]" in result.stderr


def test_standard_input_that_is_not_yaml() -> None:
    result = run("-", input="kind: [")
    assert result.exit_code == 1
    assert "error[TW002]" in result.stderr


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--xds=nowhere", "expected HOST:PORT, found `nowhere`"),
        ("--http=127.0.0.1:99999", "expected HOST:PORT"),
        ("--endpoint=orders", "expected NAME=HOST:PORT, found `orders`"),
        ("--denial=loud", "json-rpc"),
        ("--max-connection-duration=-1", "is not in the range"),
        ("--xds=0.0.0.0:0", "xDS on `0.0.0.0` needs --xds-certificate"),
        ("--xds=127.0.0.1:0", "xDS on `127.0.0.1` needs --xds-certificate"),
        ("--no-envoy", "xDS on `127.0.0.1` needs --xds-certificate"),
        ("--xds=unix:/run/tierwall/xds.sock", "it needs --no-envoy"),
    ],
)
def test_malformed_options_are_usage_errors(folder: Path, option: str, words: str) -> None:
    result = run(str(folder), option)
    assert result.exit_code == 2
    assert words in result.stderr


def test_half_of_a_certificate_is_a_usage_error(folder: Path) -> None:
    given = str(folder / "tls.yaml")
    assert "give --certificate and --key together" in run(str(folder), f"--certificate={given}").stderr
    assert (
        "give --xds-certificate, --xds-key and --xds-client-ca together"
        in run(str(folder), "--no-envoy", f"--xds-certificate={given}").stderr
    )
    all_of_it = [f"--xds-{what}={given}" for what in ("certificate", "key", "client-ca")]
    assert "needs --no-envoy" in run(str(folder), *all_of_it).stderr


def test_certificates_may_come_from_a_pipe_and_files_change(tmp_path: Path) -> None:
    authority = certificates.Authority()
    first, second = (authority.server("localhost") for _ in range(2))
    path, client_ca = tmp_path / "pair.pem", tmp_path / "ca.pem"
    path.write_bytes(first.certificate + first.key)
    client_ca.write_bytes(authority.pem)
    files = CertificateFiles(str(path), str(path), str(client_ca))
    assert files.certificate is not None
    assert not files.reload()
    client_ca.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        files.reload()
    # It is said once, and what was in force stays.
    assert not files.reload()
    client_ca.write_bytes(b"")
    with pytest.raises(InputError, match="is not a PEM certificate"):
        files.reload()
    assert files.authority == authority.pem
    path.write_bytes(second.certificate + second.key)
    client_ca.write_bytes(authority.pem)
    assert files.reload()
    assert files.certificate.chain == second.certificate + second.key

    reader, writer = os.pipe()
    os.write(writer, authority.pem)
    os.close(writer)
    try:
        piped = CertificateFiles(None, None, f"/dev/fd/{reader}")
        assert piped.authority == authority.pem
        assert not piped.reload()
    finally:
        os.close(reader)
