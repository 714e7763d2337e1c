"""The programs that are called, and plain words for what is missing: no root, no nft, no kernel feature."""

from __future__ import annotations

import os
import shutil
import subprocess

from tierwall.core.diagnostics import Diagnostic, InputError

PACKAGES = {"nft": "nftables", "ip": "iproute2"}
# Distributions put these where an ordinary user's PATH does not lead.
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_LIMIT = 120.0

# What the kernel's refusals mean, by a word in what nft says and the errno behind it.
_FEATURES = (
    ("log", "logging to NFLOG (CONFIG_NFT_LOG, CONFIG_NETFILTER_NETLINK_LOG)"),
    ("ct state", "connection tracking (CONFIG_NFT_CT, CONFIG_NF_CONNTRACK)"),
    ("limit", "rate limits (CONFIG_NFT_LIMIT)"),
    ("*", "catch-all elements of maps (Linux 5.13)"),
)


def find(program: str) -> str:
    """The path of a program; InputError says which package has it."""
    found = shutil.which(program, path=_PATH)
    if found is None:
        words = f"the program `{program}` is not on this machine"
        hint = f"install the package {PACKAGES.get(program, program)}, for example with `make kernel-tools`"
        raise InputError([Diagnostic("TW602", words, hint=hint)])
    return found


def run(program: str, *arguments: str, given: str = "") -> str:
    """What a program prints; InputError with its own words if it fails."""
    path = find(program)
    done = subprocess.run([path, *arguments], input=given, capture_output=True, text=True, timeout=_LIMIT, check=False)
    if done.returncode:
        raise InputError([_refusal(program, done.stderr)])
    return done.stdout


def _refusal(program: str, said: str) -> Diagnostic:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    words = lines[0] if lines else "no reason was given"
    if "Operation not permitted" in said or "you must be root" in said:
        hint = "run as root, or with CAP_NET_ADMIN"
        return Diagnostic("TW601", f"`{program}` may not change the kernel's tables: {words}", hint=hint)
    unsupported = "Operation not supported" in said or "Protocol not supported" in said
    if unsupported or "Unable to initialize Netlink socket" in said or "cache initialization failed" in said:
        return Diagnostic("TW603", f"the kernel has no {_feature(said)}: {words}")
    if "Could not process rule: No such file or directory" in said:
        # The kernel says so when a rule's expression has no module; the marked words name it.
        for word, feature in _FEATURES:
            if any(word in line for line in lines[1:2]):
                return Diagnostic("TW603", f"the kernel has no {feature}: {words}")
    return Diagnostic("TW604", f"`{program}` refused: {words}", found="; ".join(lines[1:3]))


def _feature(said: str) -> str:
    for word, feature in _FEATURES:
        if word in said:
            return feature
    return "nf_tables (CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET)"
