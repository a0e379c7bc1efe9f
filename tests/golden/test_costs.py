"""Time, bytes and waiting of each protocol in one fixed setting: a change of these is on purpose.

Renew the file with ``python tests/golden/test_costs.py`` and say in the change why.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from freewheel.protocols import protocols
from freewheel.simulate import Budget, Compute, CostOnly, LinkSpec, Simulation, Stragglers

FILE = Path(__file__).with_name("costs.json")
NAMES = (
    *("all_reduce", "bsp", "ssp", "dssp", "asp", "bounded_delay", "backup_workers"),
    *("local_sgd", "easgd", "fedbuff", "gba", "k_async"),
)


def costs(name: str) -> dict[str, float]:
    """Run 4 workers, one 4x slower, over 100 Mbit/s and 5 ms, 40 steps a worker, 1 MB a push."""
    work = CostOnly(Budget(steps=40, num_workers=4, shared=False), num_bytes=1_000_000)
    pace = Compute(0.1, Stragglers(1, 4.0), jitter=0.1, seed=7)
    link = LinkSpec(rate_mbit=100.0, delay_ms=5.0)
    result = Simulation(protocols.create(name), work, 4, pace, link).run()
    return {
        "virtual_s": round(result.virtual_s, 6),
        "version": result.version,
        "steps": result.steps,
        "bytes_sent": sum(result.bytes_sent.values()),
        "messages_sent": sum(result.messages_sent.values()),
    }


@pytest.mark.parametrize("name", NAMES)
def test_costs_are_as_they_were(name: str) -> None:
    assert costs(name) == pytest.approx(json.loads(FILE.read_text())[name], rel=1e-6)


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: costs(name) for name in NAMES}, indent=2) + "\n")
