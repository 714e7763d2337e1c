"""The files that an API server needs to ask the authorizer: configuration, kubeconfig, admission webhook, certificates.

Everything fails closed: if the authorizer cannot be reached, requests are denied; if admission cannot be reached, they
are refused. The API server does not cache allowed answers, so a change of policies counts for the next request.

The certificates are a CA, a server certificate and a client certificate. Only the owner can read what is written,
whatever the umask is. Existing certificates are kept, so printing the installation again does not cut off running
servers.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tierwall.api.algebra.condition import label_key_problem
from tierwall.core.diagnostics import Diagnostic, InputError
from tierwall.engines.private import write_private
from tierwall.serve.authorizer.webhook_check import EXEMPTION
from tierwall.values import names


class InstallationMode(StrEnum):
    """How conditions are enforced: by an admission webhook in the API or in files, by the API server itself, or not."""

    BRIDGE = "bridge"
    STATIC = "static"
    NATIVE = "native"
    PLAIN = "plain"

    @property
    def is_bridge(self) -> bool:
        """Whether an admission webhook enforces conditions."""
        return self in (InstallationMode.BRIDGE, InstallationMode.STATIC)


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted installation."""

    folder: str
    url: str
    name: str = "tierwall.io"
    hosts: tuple[str, ...] = ()
    days: int = 365
    exempt: tuple[str, ...] = ()
    mode: InstallationMode = InstallationMode.BRIDGE
    # The user as whom the authorizer asks the API server, and the namespace of its canary.
    api_server_user: str = "tierwall-authorizer"
    canary_namespace: str = "default"

    @property
    def is_in_cluster(self) -> bool:
        """Whether the authorizer runs in the cluster whose API server asks it."""
        return self.api_server_user.startswith("system:serviceaccount:")


def write(installation: Installation) -> str:
    """Write everything into the folder, and return the text of what was written, without certificates."""
    host = _check(installation)
    folder = Path(installation.folder).absolute()
    make_certificates(folder, tuple(dict.fromkeys((host, *installation.hosts))), installation.days)
    placeholders = {
        "folder": str(folder),
        "url": installation.url,
        "name": installation.name,
        "listen": _listen(installation.url),
        "ca": base64.b64encode((folder / "ca.crt").read_bytes()).decode(),
        "user": installation.api_server_user,
        "canary": installation.canary_namespace,
    }
    parts = []
    for file, entry in yaml.safe_load(Path(__file__).with_name("installation.yaml").read_bytes()).items():
        if installation.mode in entry.get("modes", (installation.mode,)):
            document = _fill(entry["document"], placeholders)
            _exempt(document, installation)
            text = f"# {file}: {entry['for']}\n{yaml.safe_dump(document, sort_keys=False)}"
            _make_folder((folder / file).parent)
            _replace(folder / file, text.encode())
            parts.append(text)
    bridge = " --bridge --api-server-kubeconfig KUBECONFIG" if installation.mode.is_bridge else ""
    if bridge and installation.canary_namespace != "default":
        bridge += f" --canary-namespace {installation.canary_namespace}"
    parts.append(
        f"# certificates: {folder}/ca.crt, server.crt, server.key, client.crt, client.key\n"
        f"# tierwall authorizer --policies POLICIES --listen {_listen(installation.url)} --tls-cert {folder}/server.crt"
        f" --tls-key {folder}/server.key --client-ca {folder}/ca.crt{bridge}\n"
    )
    return "---\n".join(parts)


def _fill(value: Any, placeholders: Mapping[str, str]) -> Any:
    """Fill the placeholders of a document."""
    if isinstance(value, dict):
        return {key: _fill(item, placeholders) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, placeholders) for item in value]
    return Template(value).substitute(placeholders) if isinstance(value, str) else value


def _exempt(document: dict[str, Any], installation: Installation) -> None:
    """Leave the users of exempt groups to the other authorizers, in both phases.

    An authorizer in the cluster is left to them, too, but in the first phase only: it must be able to read before it
    can answer, and admission must refuse its canary.
    """
    groups = installation.exempt
    if document["kind"] == "AuthorizationConfiguration":
        expressions = [f"!('{group}' in request.groups)" for group in groups]
        if installation.is_in_cluster:
            expressions.append(f"request.user != '{installation.api_server_user}'")
        if expressions:
            webhook = document["authorizers"][0]["webhook"]
            webhook["matchConditions"] = [{"expression": expression} for expression in expressions]
    elif groups and document["kind"] == "ValidatingWebhookConfiguration":
        document["webhooks"][0]["matchConditions"] = [
            {"name": f"exempt-{index}", "expression": EXEMPTION.format(group=group)}
            for index, group in enumerate(groups)
        ]


def _check(installation: Installation) -> str:
    """Return the host of the address; InputError names everything that cannot be used."""
    problems = []
    host = _host_of(installation.url)
    if not host:
        problems.append(f"expected an address like `https://HOST:PORT`, found `{installation.url}`")
    if label_key_problem(f"{installation.name}/x") is not None:
        problems.append(f"expected a DNS subdomain as name, found `{installation.name}`")
    if names.dns_label(installation.canary_namespace):
        problems.append(f"expected the name of a namespace, found `{installation.canary_namespace}`")
    if not installation.api_server_user or not installation.api_server_user.isprintable():
        problems.append("expected the name of a user of the API server")
    if installation.is_in_cluster and not _is_service_account(installation.api_server_user):
        problems.append(f"expected `system:serviceaccount:NAMESPACE:NAME`, found `{installation.api_server_user}`")
    problems += [
        f"group `{group}` has a character that a match condition cannot hold"
        for group in installation.exempt
        if not group or "'" in group or "\\" in group or not group.isprintable()
    ]
    if problems:
        raise InputError([Diagnostic("TW512", problem) for problem in problems])
    return host


def _is_service_account(user: str) -> bool:
    namespace, _, name = user.removeprefix("system:serviceaccount:").partition(":")
    return not names.dns_label(namespace) and not names.dns_subdomain(name)


def _host_of(url: str) -> str:
    """Return the host of an address that API servers can ask; empty if it is not one."""
    if not url.isprintable() or set(url) & set(" ?#@\\"):
        return ""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme == "https" and parts.port != 0
    except ValueError:
        return ""
    return parts.hostname or "" if is_usable else ""


def _listen(url: str) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or 443}"


CLIENT = "tierwall-api-server"


def make_certificates(folder: Path, hosts: Sequence[str], days: int) -> None:
    """Make `ca`, `server` and `client`, each as `.crt` and `.key`."""
    try:
        _make_folder(folder)
        ca, ca_key = _authority(folder, days)
        for file, name, names, use in (
            ("server", hosts[0], hosts, ExtendedKeyUsageOID.SERVER_AUTH),
            ("client", CLIENT, (), ExtendedKeyUsageOID.CLIENT_AUTH),
        ):
            if not (folder / f"{file}.crt").exists():
                key = ec.generate_private_key(ec.SECP256R1())
                builder = _builder(_name(name), ca.subject, key, days)
                builder = builder.add_extension(x509.BasicConstraints(False, None), True)
                builder = builder.add_extension(x509.ExtendedKeyUsage([use]), False)
                signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
                builder = builder.add_extension(signer, False)
                if names:
                    builder = builder.add_extension(x509.SubjectAlternativeName([*map(_host, names)]), False)
                _write(folder, file, builder.sign(ca_key, hashes.SHA256()), key)
    except (OSError, ValueError, TypeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError([Diagnostic("TW512", f"certificates in `{folder}` cannot be made: {why}")]) from error


def _authority(folder: Path, days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    if (folder / "ca.crt").exists():
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("`ca.key` is not an elliptic-curve key")
        return x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()), key
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("tierwall-authorizer-ca")
    builder = _builder(name, name, key, days * 10)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = builder.add_extension(x509.BasicConstraints(True, 0), True).add_extension(usage, True)
    certificate = builder.sign(key, hashes.SHA256())
    _write(folder, "ca", certificate, key)
    return certificate, key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(folder: Path, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _replace(folder / f"{file}.key", secret)
    _replace(folder / f"{file}.crt", certificate.public_bytes(serialization.Encoding.PEM))


def _replace(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, in the place of any that has its name."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    write_private(new, data)
    new.replace(path)


def _make_folder(folder: Path) -> None:
    """Make a folder that only its owner can enter; an existing one keeps its permissions."""
    if not folder.exists():
        _make_folder(folder.parent)
        folder.mkdir(0o700)
        folder.chmod(0o700)
