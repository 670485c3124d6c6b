"""Check of launchers: does each answer, and do the fleet's limits fit its plan? Facts in, verdict out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from leasekeeper.core.doctor.findings import Advice, Verdict, count, fail, names, ok, skip, warn


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherFacts:
    """The facts about one launcher. `problem`: why it did not answer. `asked` False: it has no API to ask.

    `plan` is how many profiles the vendor says may run at once; None: it does not say. `limits` are the pools that its
    profiles are in, each with its limit.
    """

    launcher_id: str
    asked: bool = True
    problem: str = ""
    plan: int | None = None
    max_running: int | None = None
    limits: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def above_plan(self) -> str:
        """The declared limits that allow more than the plan, as text; empty if none does. Pools are
        within `max_running`."""
        if self.plan is None or (self.max_running is not None and self.max_running <= self.plan):
            return ""
        if self.max_running is not None:
            return f"max_running {self.max_running}"
        pools = [limit for limit in self.limits.values() if limit is not None]
        if len(pools) == len(self.limits) and sum(pools) <= self.plan:
            return ""
        shown = [f"pool {pool} {limit or 'without a limit'}" for pool, limit in sorted(self.limits.items())]
        return ", ".join(["no max_running", *shown])


def judge_launchers(launchers: Sequence[LauncherFacts]) -> Verdict:
    if not launchers:
        return skip("no launcher is declared")
    data = {
        each.launcher_id: {
            "asked": each.asked,
            "problem": each.problem,
            "plan": each.plan,
            "max_running": each.max_running,
            "limits": dict(each.limits),
        }
        for each in launchers
    }
    away = [f"{each.launcher_id}: {each.problem}" for each in launchers if each.problem]
    if away:
        return fail(
            f"{count(len(away), 'launcher')} did not answer: {names(away)}",
            Advice.START_LAUNCHER,
            launchers=data,
        )
    above = [f"{each.launcher_id} allows {each.plan} at once, declared: {found}" for each in launchers
             if (found := each.above_plan)]  # fmt: skip
    if above:
        return warn(
            f"the plan is smaller than the fleet's limits: {names(above)}",
            Advice.FIT_LIMITS_TO_PLAN,
            launchers=data,
        )
    known = sum(each.plan is not None for each in launchers)
    plans = (
        f"; the plan of {known} is known, and the limits fit it"
        if known
        else "; no launcher reports what its plan allows"
    )
    return ok(f"{count(len(launchers), 'launcher')}, all answer{plans}", launchers=data)
