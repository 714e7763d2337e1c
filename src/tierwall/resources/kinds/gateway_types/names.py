"""The scalar types of the Gateway API: groups, kinds, names, host names, ports, header names, durations.

Bounds and patterns are those of the Gateway API v1.5 CRDs; every kind of the group, and the policy kinds that embed its
types, are built from them.
"""

from msgspec import UNSET, UnsetType

from tierwall.resources.schema import Schema, enum, integer, string

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_DOMAIN_PATH = rf"{_SUBDOMAIN}\/[A-Za-z0-9\/\-._~%!$&'()*+,;=:]+"

DNS_LABEL = f"^{_LABEL}$"
DNS_SUBDOMAIN = f"^{_SUBDOMAIN}$"
WILDCARD_HOSTNAME = rf"^(\*\.)?{_SUBDOMAIN}$"
HEADER_TOKEN = r"^[A-Za-z0-9!#$%&'*+\-.^_\x60|~]+$"
DURATION = r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"
PATH_CHARACTERS = r"^(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|[%][0-9a-fA-F]{2})+$"
QUALIFIED_KEY = rf"^({_SUBDOMAIN}/)?([A-Za-z0-9][-A-Za-z0-9_.]{{0,61}})?[A-Za-z0-9]$"

object_name = string(min_length=1, max_length=253)
namespace = string(min_length=1, max_length=63, pattern=DNS_LABEL)
section_name = string(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)
port_number = integer(minimum=1, maximum=65535, format="int32")
hostname = string(min_length=1, max_length=253, pattern=WILDCARD_HOSTNAME)
precise_hostname = string(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)
header_name = string(min_length=1, max_length=256, pattern=HEADER_TOKEN)
header_value = string(min_length=1, max_length=4096, pattern=r"^[!-~]+([\t ]?[!-~]+)*$")
duration = string(pattern=DURATION)
controller_name = string(min_length=1, max_length=253, pattern=f"^{_DOMAIN_PATH}$")
annotation_value = string(min_length=0, max_length=4096)
label_value = string(min_length=0, max_length=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
condition_type = string(max_length=316, pattern=rf"^({_SUBDOMAIN}/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$")
address_type = string(
    min_length=1, max_length=253, pattern=f"^Hostname|IPAddress|NamedAddress|{_DOMAIN_PATH}$", default="IPAddress"
)
protocol_type = string(
    min_length=1,
    max_length=255,
    pattern=rf"^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$|{_SUBDOMAIN}\/[A-Za-z0-9]+$",
)
http_method = enum("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")


def group(default: str | UnsetType = UNSET) -> Schema:
    """An API group: a DNS subdomain, or empty for the core group."""
    return string(max_length=253, pattern=f"^$|{DNS_SUBDOMAIN}", default=default)


def kind(default: str | UnsetType = UNSET) -> Schema:
    """A kind's name."""
    return string(min_length=1, max_length=63, pattern=r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$", default=default)
