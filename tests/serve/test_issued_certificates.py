"""A controller's own certificates: whoever trusts a bundle that is at most a day old trusts what is served."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store
from hypothesis import given, settings
from hypothesis import strategies as st

from tierwall.serve.controller.issued_certificates import (
    ANNOUNCED,
    BUNDLE,
    CERTIFICATE,
    CLIENT_LIFE,
    KEY,
    NEXT_AUTHORITY,
    SERVING_LIFE,
    SIGNING_KEY,
    CertificateRequestError,
    SecretData,
    issued,
    renewed,
)

NAMES = ("tierwall-controller.system.svc", "tierwall-controller.system")
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
URI = "tierwall://gateway/shop/front"


def store(bundle: bytes, now: datetime) -> PolicyBuilder:
    """Return the policy of somebody who trusts a bundle, at a time."""
    return PolicyBuilder().store(Store(x509.load_pem_x509_certificates(bundle))).time(now)


def is_trusted(served: bytes, bundle: bytes, now: datetime, name: str = NAMES[0]) -> bool:
    """Whether a client that trusts a bundle accepts a serving certificate, by the rules of TLS."""
    try:
        verifier = store(bundle, now).build_server_verifier(x509.DNSName(name))
        verifier.verify(x509.load_pem_x509_certificate(served), [])
    except x509.verification.VerificationError:
        return False
    return True


def is_accepted(client: bytes, bundle: bytes, now: datetime) -> bool:
    """Whether a server that trusts a bundle accepts a client certificate."""
    try:
        store(bundle, now).build_client_verifier().verify(x509.load_pem_x509_certificate(client), [])
    except x509.verification.VerificationError:
        return False
    return True


def request(key: ec.EllipticCurvePrivateKey | None = None) -> bytes:
    """A request of an Envoy for a certificate."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "admin")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = builder.sign(key or ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def test_an_empty_secret_is_filled_and_then_stays_as_it_is() -> None:
    first = renewed({}, NAMES, BEGIN)
    assert set(first) == {BUNDLE, SIGNING_KEY, CERTIFICATE, KEY}
    assert renewed(first, NAMES, BEGIN) is first
    assert renewed(first, NAMES, BEGIN + SERVING_LIFE / 2) is first
    for name in NAMES:
        assert is_trusted(first[CERTIFICATE], first[BUNDLE], BEGIN, name)
    assert not is_trusted(first[CERTIFICATE], first[BUNDLE], BEGIN, "elsewhere.svc")


@settings(max_examples=8)
@given(st.lists(st.floats(0.01, 0.99), min_size=30, max_size=60))
def test_who_trusts_a_bundle_of_a_day_ago_trusts_what_is_served(steps: list[float]) -> None:
    # It looks at least once in 29 days: a serving certificate that is due has 30 days left.
    now, data = BEGIN, renewed({}, NAMES, BEGIN)
    bundles = [(now, data[BUNDLE])]
    authorities = set()
    for step in steps:
        now += timedelta(days=29) * step
        before, data = data, renewed(data, NAMES, now)
        bundles.append((now, data[BUNDLE]))
        authorities.add(data[SIGNING_KEY])
        # Between two looks nothing changes, so the bundle that counted a day ago is the last one before that.
        seen = [bundle for time, bundle in bundles if time <= now - ANNOUNCED]
        for bundle in (data[BUNDLE], *seen[-1:]):
            assert is_trusted(data[CERTIFICATE], bundle, now)
        assert is_trusted(before[CERTIFICATE], data[BUNDLE], now)
        client = issued(before).sign_client(request(), URI, now)
        assert is_accepted(client, data[BUNDLE], now)
    if now - BEGIN > timedelta(days=600):
        assert len(authorities) > 1, "the CA was replaced"


def test_a_new_authority_signs_a_day_after_it_was_announced() -> None:
    first = renewed({}, NAMES, BEGIN)
    due = BEGIN + timedelta(days=487)
    announced = renewed(first, NAMES, due)
    assert NEXT_AUTHORITY in announced
    assert announced[SIGNING_KEY] == first[SIGNING_KEY]
    assert len(x509.load_pem_x509_certificates(announced[BUNDLE])) == 2
    waiting = renewed(announced, NAMES, due + ANNOUNCED - timedelta(seconds=1))
    assert waiting is announced
    signing = renewed(announced, NAMES, due + ANNOUNCED)
    assert signing[SIGNING_KEY] != first[SIGNING_KEY]
    assert NEXT_AUTHORITY not in signing
    # Envoys may hold certificates of the old one for a day; it stays as long as it is valid.
    client = issued(first).sign_client(request(), URI, due + ANNOUNCED)
    assert is_accepted(client, signing[BUNDLE], due + ANNOUNCED + CLIENT_LIFE / 2)
    late = renewed(signing, NAMES, BEGIN + timedelta(days=731))
    assert len(x509.load_pem_x509_certificates(late[BUNDLE])) == 1


@pytest.mark.parametrize("broken", [BUNDLE, SIGNING_KEY, CERTIFICATE, KEY])
@pytest.mark.parametrize("value", [None, b"", b"no PEM", "other"])
def test_a_broken_secret_is_repaired(broken: str, value: bytes | str | None) -> None:
    good = renewed({}, NAMES, BEGIN)
    data: SecretData = {key: text for key, text in good.items() if key != broken}
    if value is not None:
        data = {**data, broken: renewed({}, NAMES, BEGIN)[broken] if isinstance(value, str) else value}
    repaired = renewed(data, NAMES, BEGIN)
    assert repaired is not data
    assert is_trusted(repaired[CERTIFICATE], repaired[BUNDLE], BEGIN)
    serialization.load_pem_private_key(repaired[KEY], None)
    assert renewed(repaired, NAMES, BEGIN) is repaired
    # A CA that is still whole stays, with everything that trusts it.
    if broken in (CERTIFICATE, KEY):
        assert repaired[BUNDLE] == good[BUNDLE]


def test_another_name_of_the_service_needs_another_certificate() -> None:
    first = renewed({}, NAMES, BEGIN)
    moved = renewed(first, ("tierwall-controller.other.svc",), BEGIN)
    assert moved[BUNDLE] == first[BUNDLE]
    assert moved[CERTIFICATE] != first[CERTIFICATE]


def test_a_client_certificate_has_the_name_that_the_controller_gives_it() -> None:
    data = renewed({}, NAMES, BEGIN)
    key = ec.generate_private_key(ec.SECP256R1())
    signed = issued(data).sign_client(request(key), URI, BEGIN)
    certificate = x509.load_pem_x509_certificate(signed)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [URI]
    assert certificate.public_key() == key.public_key()
    assert "admin" not in certificate.subject.rfc4514_string()
    assert is_accepted(signed, data[BUNDLE], BEGIN)
    assert not is_accepted(signed, data[BUNDLE], BEGIN + CLIENT_LIFE * 2)
    assert not is_trusted(signed, data[BUNDLE], BEGIN), "it serves nobody"
    assert not is_accepted(data[CERTIFICATE], data[BUNDLE], BEGIN), "a server is not a client"
    assert not is_accepted(signed, renewed({}, NAMES, BEGIN)[BUNDLE], BEGIN)


@pytest.mark.parametrize("text", [b"", b"no PEM", renewed({}, NAMES, BEGIN)[CERTIFICATE]])
def test_what_is_not_a_request_gets_no_certificate(text: bytes) -> None:
    with pytest.raises(CertificateRequestError):
        issued(renewed({}, NAMES, BEGIN)).sign_client(text, URI, BEGIN)


def test_a_request_that_its_key_has_not_signed_gets_no_certificate() -> None:
    pem = request().decode()
    body = pem.splitlines()
    # The signature is at the end of the request.
    line = body[-2]
    body[-2] = line[:4] + ("A" if line[4] != "A" else "B") + line[5:]
    with pytest.raises(CertificateRequestError):
        issued(renewed({}, NAMES, BEGIN)).sign_client("\n".join(body).encode(), URI, BEGIN)


def test_a_secret_that_lacks_something_is_not_taken() -> None:
    with pytest.raises(ValueError, match=r"tls\.key"):
        issued({BUNDLE: b"", CERTIFICATE: b"", SIGNING_KEY: b""})
