"""Admission: what an API server would refuse, and in which words. `admit(document)` is the way in."""

from tierwall.resources.admission.admit import admit, with_defaults
from tierwall.resources.admission.problem import AdmissionProblem

__all__ = ["AdmissionProblem", "admit", "with_defaults"]
