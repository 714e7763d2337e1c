"""Calls of nft and ip, and clear errors for what is missing: root, a program, or a kernel feature."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess

from tierwall.core.diagnostics import Diagnostic, InputError

PACKAGES = {"nft": "nftables", "ip": "iproute2"}
# Distributions install these outside an ordinary user's PATH.
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_LIMIT = 120.0

# Features that the kernel may lack, by the words that nft underlines in a script.
_FEATURES = (
    ("log", "logging to NFLOG (CONFIG_NFT_LOG, CONFIG_NETFILTER_NETLINK_LOG)"),
    ("ct state", "connection tracking (CONFIG_NFT_CT, CONFIG_NF_CONNTRACK)"),
    ("limit", "rate limits (CONFIG_NFT_LIMIT)"),
    ("counter", "named counters (CONFIG_NFT_OBJREF)"),
    ("type filter hook", "base chains of the inet family (CONFIG_NF_TABLES_INET)"),
    ("*", "catch-all elements of maps (Linux 5.13)"),
)
_ABSENT = ("No such file or directory", "Operation not supported", "Protocol not supported", "Protocol error")


def find(program: str) -> str:
    """Return the path of a program; InputError names the package that has it."""
    path = shutil.which(program, path=_PATH)
    if path is None:
        message = f"the program `{program}` is not installed"
        hint = f"install the package {PACKAGES.get(program, program)}, for example with `make kernel-tools`"
        raise InputError([Diagnostic("TW602", message, hint=hint)])
    return path


def run(program: str, *arguments: str, stdin: str = "") -> str:
    """Run a program and return its output; InputError with the program's own words if it fails."""
    path = find(program)
    try:
        result = subprocess.run(
            [path, *arguments], input=stdin, capture_output=True, text=True, timeout=_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        message = f"`{program}` took longer than {_LIMIT:g} seconds"
        raise InputError([Diagnostic("TW604", message)]) from None
    if result.returncode:
        raise InputError([_refusal(program, result.stderr)])
    return result.stdout


def _refusal(program: str, stderr: str) -> Diagnostic:
    lines = [line for line in stderr.splitlines() if line.strip()]
    message = lines[0].strip() if lines else "no reason was given"
    if "Operation not permitted" in stderr or "you must be root" in stderr:
        hint = "run as root, or with CAP_NET_ADMIN"
        return Diagnostic("TW601", f"`{program}` may not change the kernel's tables: {message}", hint=hint)
    if "Unable to initialize Netlink socket" in stderr or "cache initialization failed" in stderr:
        return Diagnostic("TW603", f"the kernel has no nf_tables (CONFIG_NF_TABLES): {message}")
    underlined = _underlined(lines)
    if any(reason in message for reason in _ABSENT):
        for start, feature in _FEATURES:
            if underlined.startswith(start):
                return Diagnostic("TW603", f"the kernel has no {feature}: {message}", actual=underlined)
    return Diagnostic("TW604", f"`{program}` refused: {message}", actual=underlined)


def _underlined(lines: list[str]) -> str:
    """Return the part of the script that nft underlines with `^` below the line it quotes."""
    for line, below in itertools.pairwise(lines):
        if below.strip() and set(below) <= {"^", "~", " ", "\t"} and "^" in below:
            return line[below.index("^") : below.rindex("^") + 1].strip()
    return ""
