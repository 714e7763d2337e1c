"""Metrics for OpenTelemetry: Envoy sends a collector how often each policy and rule gave which verdict.

Envoy counts the verdicts of policy filters by the name of who decided (`rbac.rule_name`). Its statistics have no
attributes, only long names. Patterns take policy, rule and verdict out of them, and the sink sends one metric with
these as attributes (docs/run.md#metrics). All other statistics stay in Envoy: those of thousands of backends would
say nothing about policies.
"""

from __future__ import annotations

from typing import Any

from envoy.config.metrics.v3 import stats_pb2
from envoy.extensions.matching.common_inputs.stats.v3 import stats_pb2 as stats_input_pb2
from envoy.extensions.stat_sinks.open_telemetry.v3 import open_telemetry_pb2
from envoy.extensions.tracers.opentelemetry.resource_detectors.v3 import (
    static_config_resource_detector_pb2 as static_detector_pb2,
)
from google.protobuf.json_format import MessageToDict
from xds.type.matcher.v3 import matcher_pb2

from tierwall.engines.envoy.config import clusters
from tierwall.engines.envoy.config.matchers import extension_config, first_of, matcher, packed
from tierwall.engines.envoy.config.options import SocketAddress

METRIC = "tierwall.policy.verdicts"
# Not the name of the cluster for traces: a static cluster cannot be replaced by one that the control plane sends.
COLLECTOR = "telemetry-metrics"
# The statistics of policy filters: `http.LISTENER.rbac.SLOT_.policy.DECIDER.VERDICT`. A listener has neither blanks nor
# underscores in its name. A rule allows, with the policy's name, its place and its own name, and none has a blank. A
# policy denies as a whole, and may do so because its name is invalid: then the name may be any text.
_FILTER = r"^http\.gateway\.[^ _]*\.rbac\.(?:gateway|backend)_\d_\.policy\."
# A message stays below the 4 MiB that collectors accept by default: names make a counter about 300 bytes long.
MAX_COUNTERS_PER_MESSAGE = 5000
# By attribute. Envoy cuts the first group from the name of a statistic, and the second is the value.
_ATTRIBUTES = {
    "tierwall.policy": rf"{_FILTER}((.+?))(?: .+\.allowed|\.denied)$",
    "tierwall.rule": rf"{_FILTER}[^ ]+( ([^ ]+?))(?: [^ ]+)?\.allowed$",
    "tierwall.rule.name": rf"{_FILTER}[^ ]+ [^ ]+( ([^ ]+))\.allowed$",
    "tierwall.verdict": rf"{_FILTER}.+(\.(allowed|denied))$",
}


def bootstrap_parts(collector: SocketAddress) -> dict[str, Any]:
    """Return the parts of a bootstrap, in Envoy's JSON form, that send metrics to a collector, with its cluster."""
    tags = [stats_pb2.TagSpecifier(tag_name=name, regex=regex) for name, regex in _ATTRIBUTES.items()]
    config = stats_pb2.StatsConfig(stats_tags=tags)
    # Envoy's own attributes would repeat the name of the listener, cut off at its first dot.
    config.use_all_default_tags.value = False
    sink = _document(stats_pb2.StatsSink(name="envoy.stat_sinks.open_telemetry", typed_config=packed(_sink())))
    # Envoy 1.40 knows this field, but the generated messages do not.
    sink["typed_config"]["max_data_points_per_request"] = MAX_COUNTERS_PER_MESSAGE
    return {
        "cluster": _document(clusters.cluster(COLLECTOR, collector, http2=True, either_family=True)),
        "stats_config": _document(config),
        "stats_sinks": [sink],
    }


def _sink() -> Any:
    out = open_telemetry_pb2.SinkConfig()
    out.grpc_service.envoy_grpc.cluster_name = COLLECTOR
    out.grpc_service.timeout.seconds = 1
    service = static_detector_pb2.StaticConfigResourceDetectorConfig(attributes={"service.name": "tierwall"})
    name = "envoy.tracers.opentelemetry.resource_detectors.static_config"
    out.resource_detectors.add(name=name, typed_config=packed(service))
    predicate = matcher_pb2.Matcher.MatcherList.Predicate()
    single = predicate.single_predicate
    single.input.CopyFrom(extension_config("name", stats_input_pb2.StatFullNameMatchInput()))
    single.value_match.safe_regex.google_re2.SetInParent()
    single.value_match.safe_regex.regex = _ATTRIBUTES["tierwall.verdict"]
    sent = _action(open_telemetry_pb2.SinkConfig.ConversionAction(metric_name=METRIC))
    dropped = _action(open_telemetry_pb2.SinkConfig.DropAction())
    out.custom_metric_conversions.CopyFrom(matcher(first_of([(predicate, sent)], dropped)))
    return out


def _action(message: Any) -> Any:
    return matcher_pb2.Matcher.OnMatch(action=extension_config("action", message))


def _document(message: Any) -> dict[str, Any]:
    out: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return out
