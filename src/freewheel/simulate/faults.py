"""Deaths and joins, as a plan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from freewheel.errors import ConfigError


@dataclass(frozen=True)
class Fault:
    """A worker dies, or a new one joins, at a virtual time.

    Args:
        what: ``"death"`` or ``"join"``.
        rank: whose; a join needs a rank that is not there yet.
        at_s: when, in virtual seconds, >= 0.

    Raises:
        ConfigError: a value is out of its range.

    Example:
        >>> from freewheel.simulate import Fault
        >>> Fault.parse("death", "3@1.5")
        Fault(what='death', rank=3, at_s=1.5)
    """

    what: Literal["death", "join"]
    rank: int
    at_s: float

    def __post_init__(self) -> None:
        if self.rank < 0 or not self.at_s >= 0:
            raise ConfigError(
                f"a {self.what} needs a rank >= 0 and a time >= 0 s, got rank {self.rank} at "
                f"{self.at_s} s"
            )

    @classmethod
    def parse(cls, what: Literal["death", "join"], text: str) -> Fault:
        """Read ``"3@1.5"``: rank 3 at 1.5 virtual seconds.

        Raises:
            ConfigError: it does not look like that.
        """
        found = re.fullmatch(r"(\d+)@(\d*\.?\d+)", text.strip())
        if not found:
            raise ConfigError(f"{what} {text!r} must look like RANK@SECONDS, e.g. 3@1.5")
        return cls(what, int(found[1]), float(found[2]))


def check_faults(faults: Sequence[Fault], num_workers: int) -> None:
    """Refuse a plan that cannot happen.

    Raises:
        ConfigError: somebody dies or joins twice, dies without being there, or joins while there.
    """
    joins = {fault.rank: fault.at_s for fault in faults if fault.what == "join"}
    deaths = {fault.rank: fault.at_s for fault in faults if fault.what == "death"}
    if len(joins) + len(deaths) != len(faults):
        raise ConfigError("a rank can die once and join once; give a newcomer a new rank")
    for rank in joins:
        if rank < num_workers:
            raise ConfigError(
                f"rank {rank} cannot join: it is one of the {num_workers} initial workers; "
                f"use a rank >= {num_workers}"
            )
    for rank, at_s in deaths.items():
        if rank >= num_workers and joins.get(rank, float("inf")) > at_s:
            raise ConfigError(
                f"rank {rank} cannot die at {at_s} s: it is not there; initial ranks are 0 to "
                f"{num_workers - 1}"
            )
