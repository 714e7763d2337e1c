"""The options of `tierwall controller`: what is missing, and times that do not fit together."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tierwall.cli.main import root


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(root, ["controller", *arguments])
    assert result.exit_code == 2
    return result.stderr.splitlines()[-1]


def test_a_cluster_must_be_named() -> None:
    assert refusal() == "Error: Missing option '--cluster' or '--context NAME'."


@pytest.mark.parametrize("command", [("controller",), ("enforce", "nft", "--node=n")])
def test_the_namespace_of_the_release_is_one_that_can_be(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(root, [*command, "--cluster", "--release-namespace", "Bad/Name"])
    expected = "Error: Invalid value for '--release-namespace': expected the name of a namespace, found `Bad/Name`"
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, expected)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (("--lease-duration=10s",), "the lease must last longer than the renewal deadline"),
        (("--lease-duration=2562047h",), "the lease can last 2147483647 s at most"),
        (("--renew-deadline=2500ms",), "the renewal deadline must be longer than the retry period and 25%"),
        (("--retry-period=0s",), "the retry period must be longer than 0s"),
    ],
)
def test_times_must_fit_together(times: tuple[str, ...], words: str) -> None:
    assert refusal("--cluster", *times) == f"Error: {words}"


@pytest.mark.parametrize("option", ["--lease-duration", "--renew-deadline", "--retry-period"])
def test_times_are_durations(option: str) -> None:
    expected = f"Error: Invalid value for {option}: expected a duration such as 15s, found `soon`"
    assert refusal("--cluster", option, "soon") == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--webhook=:9443x",),
            "Invalid value for --webhook: expected HOST:PORT, found `:9443x`",
        ),
        (
            ("--webhook=0.0.0.0:9443", "--refuse=TW999"),
            "Invalid value for --refuse: expected the code of a warning such as TW201, found `TW999`",
        ),
        (
            ("--webhook=0.0.0.0:9443", "--refuse=TW501"),
            "Invalid value for --refuse: expected the code of a warning such as TW201, found `TW501`",
        ),
        (("--webhook=0.0.0.0:9443", "--webhook-cert=a"), "--webhook-cert and --webhook-key are given together"),
        (("--refuse=TW201",), "--webhook-cert, --refuse and --reveal-admin-policies need --webhook"),
    ],
)
def test_options_of_the_webhook_must_fit_together(options: tuple[str, ...], words: str) -> None:
    assert refusal("--cluster", *options) == f"Error: {words}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gateway-namespace=shop",), "options for Envoys and Gateways need --xds HOST:PORT"),
        (("--envoy-certificates=0.0.0.0:1",), "options for Envoys and Gateways need --xds HOST:PORT"),
        (
            ("--xds=0.0.0.0:1", "--xds-key=FILE"),
            "give --xds-certificate, --xds-key and --xds-client-ca together",
        ),
        (
            ("--xds=0.0.0.0:1", "--envoy-template=FILE"),
            "--envoy-template needs --envoy-certificates and --gateway-namespace",
        ),
        (
            ("--xds=0.0.0.0:1", "--envoy-certificates=0.0.0.0:2", "--gateway-namespace=a", "--envoy-template=FILE"),
            "Invalid value for --envoy-template: `FILE` cannot be used: Object missing required field `image`",
        ),
        (
            (
                "--xds=0.0.0.0:1",
                "--envoy-certificates=0.0.0.0:2",
                *(f"--xds-{name}=FILE" for name in ("certificate", "key", "client-ca")),
            ),
            "--envoy-certificates needs the controller's own CA: leave --xds-certificate out",
        ),
    ],
)
def test_options_for_envoys_must_fit_together(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    file = tmp_path / "file"
    file.write_text("{}")
    given = (option.replace("FILE", str(file)) for option in options)
    assert refusal("--cluster", *given) == f"Error: {words.replace('FILE', str(file))}"
