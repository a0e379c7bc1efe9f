"""``[compare]``: what a comparison is told beside the run that it varies."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from freewheel.config import Count, Positive, Section

#: Metrics of which less is better; of all others more is.
LOWER_IS_BETTER = ("loss", "mae", "bits_per_byte")

Control = Literal["train_less", "quantise_only", "static", "zero_comm", "frozen_upstream"]

CONTROLS: tuple[Control, ...] = (
    "train_less",
    "quantise_only",
    "static",
    "zero_comm",
    "frozen_upstream",
)


class LinkTable(Section):
    """``[[compare.links]]``: a network to take times on, as ``[link]`` describes it."""

    rate_mbit: float | None = Field(default=None, gt=0)
    delay_ms: float = Field(default=0.0, ge=0)
    jitter_ms: float = Field(default=0.0, ge=0)

    @property
    def name(self) -> str:
        """What a person calls it.

        Example:
            >>> from freewheel.compare.settings import LinkTable
            >>> LinkTable(rate_mbit=20, delay_ms=5).name
            '20 Mbit/s, 5 ms'
        """
        rate = "unlimited" if self.rate_mbit is None else f"{self.rate_mbit:g} Mbit/s"
        delay = f", {self.delay_ms:g} ms" if self.delay_ms else ""
        return rate + delay + (f" +- {self.jitter_ms:g} ms" if self.jitter_ms else "")


class CompareSection(Section):
    """``[compare]``: seeds, what is judged, and which controls there are.

    Args:
        about: a sentence for the results.
        seeds: how many (0, 1, 2 ...), or which.
        metric: of ``[eval] metrics``, or ``loss``.
        goal: whether more or less of it is better; by default what its name says.
        margin: headlines are taken at vanilla's final metric worse by so much: a number in the
            metric's own unit (0.01 is one point of accuracy), or ``"2%"`` of vanilla's.
        probe_steps: steps that each candidate for the fastest vanilla is timed on; 0 takes
            ``[layout]`` as it stands.
        probe_seed: their seed, which is none of the reported ones.
        micro_batches: numbers of micro-batches that are tried.
        schedules: schedules that are tried.
        links: take accuracy without a slow link and time on ``time_steps`` steps over each of
            these; none: both are measured in one run over ``[link]``.
        time_steps: steps that a time is predicted from.
        time_seeds: runs of so many steps for each arm and link.
        controls: which add themselves; the table names those left out.
        zero_comm_hidden: hidden widths of the head that ``zero_comm`` gives to stage 0; none: a
            linear head.
        evaluations: how often a run is scored where ``[eval] every`` is 0.
        keep_runs: keep the run folders of runs that ended well; those that failed are always kept.
    """

    about: str = ""
    seeds: Positive | tuple[Count, ...] = 3
    metric: str = "accuracy"
    goal: Literal["highest", "lowest"] | None = None
    margin: float | str = 0.01
    probe_steps: Count = 60
    probe_seed: Count = 10_000
    micro_batches: tuple[Positive, ...] = (1, 2, 4, 8)
    schedules: tuple[Literal["gpipe", "1f1b"], ...] = ("1f1b", "gpipe")
    links: tuple[LinkTable, ...] = ()
    time_steps: Positive = 200
    time_seeds: Positive = 1
    controls: tuple[Control, ...] = CONTROLS
    zero_comm_hidden: tuple[Positive, ...] = ()
    evaluations: Positive = 20
    keep_runs: bool = False

    @field_validator("margin")
    @classmethod
    def _margin(cls, value: float | str) -> float | str:
        if isinstance(value, str):
            number = value.removesuffix("%").strip()
            if not value.endswith("%") or not number.replace(".", "", 1).isdigit():
                raise ValueError('must be a number, or a share of vanilla such as "2%"')
        elif value < 0:
            raise ValueError("must be >= 0")
        return value

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds, one by one."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    @property
    def higher_is_better(self) -> bool:
        """Whether more of the metric is better."""
        if self.goal is not None:
            return self.goal == "highest"
        return self.metric not in LOWER_IS_BETTER

    def target(self, vanilla: float) -> float:
        """Return vanilla's final metric, worse by the margin.

        Example:
            >>> from freewheel.compare.settings import CompareSection
            >>> round(CompareSection().target(0.95), 3)
            0.94
            >>> CompareSection(metric="bits_per_byte", margin="2%").target(2.0)
            2.04
        """
        if isinstance(self.margin, str):
            margin = float(self.margin.removesuffix("%")) / 100 * abs(vanilla)
        else:
            margin = self.margin
        return vanilla - margin if self.higher_is_better else vanilla + margin
