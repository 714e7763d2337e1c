"""Settings of one connection that the frontend and the backend share, and those of connections to a backend."""

from tierwall.resources.kinds.agentgateway.references import BACKEND_REF_OR_URL, secret_object_ref, url_without_path
from tierwall.resources.kinds.agentgateway.scalars import duration, short_string, tiny_string, url
from tierwall.resources.kinds.gateway_types.names import object_name, precise_hostname
from tierwall.resources.kinds.gateway_types.references import backend_object_reference
from tierwall.resources.schema import (
    array,
    at_most_one_of,
    enum,
    integer,
    obj,
    optional,
    required,
    rule,
)

alpn_protocols = array(tiny_string, min_items=1, max_items=16)
key_exchange_groups = array(enum("P-256", "P-384", "X25519", "X25519_MLKEM768"))

keepalive = obj(
    optional("interval", duration("1s", "interval must be at least 1 second")),
    optional("retries", integer(minimum=1, maximum=64, format="int32")),
    optional("time", duration("1s", "time must be at least 1 second")),
    title="Keepalive",
)

backend_tcp = obj(
    optional("connectTimeout", duration("100ms", "connectTimeout must be at least 100ms")),
    optional("keepalive", keepalive),
    title="BackendTCP",
)

backend_http = obj(
    optional("requestTimeout", duration("1ms", "requestTimeout must be at least 1ms")),
    optional("version", enum("HTTP1", "HTTP2")),
    title="BackendHTTP",
)

backend_tunnel = obj(
    optional("backendRef", backend_object_reference),
    optional("url", url),
    BACKEND_REF_OR_URL,
    url_without_path(" for backend tunnel"),
    title="BackendTunnel",
)

backend_tls = obj(
    optional("alpnProtocols", alpn_protocols),
    optional(
        "caCertificateRefs",
        array(
            obj(
                optional("kind", enum("ConfigMap", "Secret", default="ConfigMap")),
                required("name", object_name),
            ),
            max_items=1,
            list_type="atomic",
        ),
    ),
    optional("certificateSource", enum("Inline", "SPIFFE", default="Inline")),
    optional("insecureSkipVerify", enum("All", "Hostname")),
    optional("keyExchangeGroups", key_exchange_groups),
    optional("mtlsCertificateRef", array(secret_object_ref, max_items=1, list_type="atomic")),
    optional("sni", precise_hostname),
    optional("verifySubjectAltNames", array(short_string, min_items=1, max_items=16)),
    rule(
        "has(self.insecureSkipVerify) && self.insecureSkipVerify == 'All' ? !has(self.caCertificateRefs) : true",
        "insecureSkipVerify All and caCertificateRefs may not be set together",
    ),
    rule(
        "has(self.insecureSkipVerify) ? !has(self.verifySubjectAltNames) : true",
        "insecureSkipVerify and verifySubjectAltNames may not be set together",
    ),
    rule(
        "!has(self.certificateSource) || self.certificateSource != 'SPIFFE' || "
        "(!has(self.mtlsCertificateRef) && !has(self.caCertificateRefs) && !has(self.insecureSkipVerify))",
        "certificateSource SPIFFE may not be combined with mtlsCertificateRef, caCertificateRefs, or"
        " insecureSkipVerify",
    ),
    at_most_one_of("verifySubjectAltNames", "insecureSkipVerify"),
    title="BackendTLS",
)
