"""The Grafana dashboard asks only for metrics and labels that `tierwall run` has."""

from __future__ import annotations

import json
import re

from tests import ROOT
from tierwall.serve.pages import RunMetrics

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "tools.json").read_text())
# Gauges that `run` adds to the metrics of every process, and labels that Prometheus adds.
OF_RUN = {"tierwall_proxies", "tierwall_programmed"}
OF_PROMETHEUS = {"job", "le"}


def test_every_panel_asks_for_what_there_is() -> None:
    metrics = RunMetrics()
    metrics.decisions.labels("tool", "Allow", "AccessPolicy/a/b", "rules[0]", "pay").inc()
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    names = {sample.name for sample in samples} | OF_RUN
    labels = {label for sample in samples for label in sample.labels} | OF_PROMETHEUS
    run = (ROOT / "src" / "tierwall" / "serve" / "run.py").read_text()
    assert all(f'"{name}"' in run for name in OF_RUN)
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert len(expressions) == len(DASHBOARD["panels"])
    for expression in expressions:
        assert set(re.findall(r"tierwall_\w+", expression)) <= names, expression
        grouped = {label for text in re.findall(r"by \(([^)]*)\)", expression) for label in text.split(", ")}
        assert grouped | set(re.findall(r"(\w+)=~?\"", expression)) <= labels, expression


def test_panels_do_not_overlap() -> None:
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
