"""The same work in virtual time: an event engine that drives the very same protocol objects."""

from __future__ import annotations

from freewheel.simulate.compute import Compute, Stragglers, Transient
from freewheel.simulate.engine import Simulation
from freewheel.simulate.faults import Fault
from freewheel.simulate.link import LinkSpec
from freewheel.simulate.result import Observer, Result
from freewheel.simulate.workload import Budget, CostOnly, Workload

__all__ = [
    "Budget",
    "Compute",
    "CostOnly",
    "Fault",
    "LinkSpec",
    "Observer",
    "Result",
    "Simulation",
    "Stragglers",
    "Transient",
    "Workload",
]
