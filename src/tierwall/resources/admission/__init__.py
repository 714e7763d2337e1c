"""Admission: what an API server would refuse, and in which words. `admit(document)` is the way in."""

from tierwall.resources.admission.admit import admit, with_defaults
from tierwall.resources.admission.problem import Problem

__all__ = ["Problem", "admit", "with_defaults"]
