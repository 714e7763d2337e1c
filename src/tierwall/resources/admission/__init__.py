"""Admission: would an API server refuse an object, and in which words? Start at `admit(document)`."""

from tierwall.resources.admission.admit import admit, with_defaults
from tierwall.resources.admission.problem import AdmissionProblem

__all__ = ["AdmissionProblem", "admit", "with_defaults"]
