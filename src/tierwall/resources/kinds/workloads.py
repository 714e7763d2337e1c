"""The workload kinds that have a pod template (`apps/v1`, `batch/v1`): only read, for the pods they make."""

from tierwall.resources.kinds.core import pod_spec
from tierwall.resources.kinds.kind import Kind
from tierwall.resources.kinds.meta import label_selector, labels
from tierwall.resources.schema import Property, Schema, integer, mapping, obj, optional, string

_template_meta = obj(
    optional("name", string()),
    optional("labels", labels, "Labels of the pods."),
    optional("annotations", mapping(string())),
)
_template = optional(
    "template", obj(optional("metadata", _template_meta), optional("spec", pod_spec)), "What the pods are like."
)
_selector = optional("selector", label_selector, "The pods that belong to it.")
_replicas = optional("replicas", integer(minimum=0, format="int32"), "How many pods there are; 1 if left out.")


def _workload(group: str, kind: str, plural: str, short: tuple[str, ...], spec: Schema) -> Kind:
    return Kind(
        group=group,
        version="v1",
        kind=kind,
        plural=plural,
        short_names=short,
        strict=False,
        is_crd=False,
        status_subresource=True,
        description="Makes pods from a template.",
        schema=obj(optional("spec", spec)),
    )


def _spec(*parts: Property) -> Schema:
    return obj(*parts, _template)


_job_spec = _spec(_selector, optional("parallelism", integer(minimum=0)), optional("completions", integer(minimum=0)))
_job_template = obj(optional("metadata", _template_meta), optional("spec", _job_spec))

KINDS = (
    _workload("apps", "Deployment", "deployments", ("deploy",), _spec(_replicas, _selector)),
    _workload("apps", "StatefulSet", "statefulsets", ("sts",), _spec(_replicas, _selector)),
    _workload("apps", "DaemonSet", "daemonsets", ("ds",), _spec(_selector)),
    _workload("apps", "ReplicaSet", "replicasets", ("rs",), _spec(_replicas, _selector)),
    _workload("batch", "Job", "jobs", (), _job_spec),
    _workload("batch", "CronJob", "cronjobs", ("cj",), obj(optional("jobTemplate", _job_template))),
)
