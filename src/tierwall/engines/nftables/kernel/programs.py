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
        words = f"the program `{program}` is not installed"
        hint = f"install the package {PACKAGES.get(program, program)}, for example with `make kernel-tools`"
        raise InputError([Diagnostic("TW602", words, hint=hint)])
    return path


def run(program: str, *arguments: str, given: str = "") -> str:
    """Run a program and return its output; InputError with the program's own words if it fails."""
    path = find(program)
    done = subprocess.run([path, *arguments], input=given, capture_output=True, text=True, timeout=_LIMIT, check=False)
    if done.returncode:
        raise InputError([_refusal(program, done.stderr)])
    return done.stdout


def _refusal(program: str, said: str) -> Diagnostic:
    lines = [line for line in said.splitlines() if line.strip()]
    words = lines[0].strip() if lines else "no reason was given"
    if "Operation not permitted" in said or "you must be root" in said:
        hint = "run as root, or with CAP_NET_ADMIN"
        return Diagnostic("TW601", f"`{program}` may not change the kernel's tables: {words}", hint=hint)
    if "Unable to initialize Netlink socket" in said or "cache initialization failed" in said:
        return Diagnostic("TW603", f"the kernel has no nf_tables (CONFIG_NF_TABLES): {words}")
    marked = _marked(lines)
    if any(reason in words for reason in _ABSENT):
        for start, feature in _FEATURES:
            if marked.startswith(start):
                return Diagnostic("TW603", f"the kernel has no {feature}: {words}", actual=marked)
    return Diagnostic("TW604", f"`{program}` refused: {words}", actual=marked)


def _marked(lines: list[str]) -> str:
    """Return the part of the script that nft underlines with `^` below the line it quotes."""
    for line, below in itertools.pairwise(lines):
        if below.strip() and set(below) <= {"^", "~", " ", "\t"} and "^" in below:
            return line[below.index("^") : below.rindex("^") + 1].strip()
    return ""
