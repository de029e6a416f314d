"""Preflight: is it safe to compile in this process, now? Run with torch alone, and again after all imports.

In: the policy and how many graphs a run needs. Out: ``Preflight``: what is broken (findings), what is a hazard of this
torch and handled, what was repaired. Static checks take under a millisecond and run in any thread; the tries of
``behaviour.py`` run once, in the main thread, before others exist. torch is imported by ``check`` alone: where its
cache directory cannot be made, importing it fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dflash.compile.checks import BEHAVIOUR_CHECKS, STATE_CHECKS
from dflash.compile.locks import Lock
from dflash.compile.machine import CHECKS as MACHINE_CHECKS
from dflash.compile.machine import look_at_machine
from dflash.compile.policy import POLICY, Policy
from dflash.errors import ConfigError
from envguard.errors import CRASHED, FINDINGS, OK, CheckCrashed, ToolError, UsageError
from envguard.findings import Finding, run_checks

if TYPE_CHECKING:
    from dflash.compile.behaviour import Hazard

_judging = Lock()

UNFIT_FOR_TRIES = ("error_on_recompile", "compiled_autograd")
"""Settings of Dynamo with which the tries themselves fail; training can have them."""

STATUS = {OK: "pass", FINDINGS: "fail", CRASHED: "error"}


class PreflightError(ToolError):
    """Compiling here would fail, hang or be dense; one line a finding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preflight:
    """The judgement of one process at one moment."""

    stage: str
    """When: "torch alone", "after the imports"."""
    torch: str
    findings: tuple[Finding, ...]
    """What is broken; () in a sound process."""
    handled: tuple[Hazard, ...]
    """Hazards of this torch that are present and prevented."""
    absent: tuple[Hazard, ...]
    """Hazards that this torch does not have."""
    repaired: tuple[str, ...]

    @classmethod
    def before_torch(cls, findings: tuple[Finding, ...]) -> Preflight:
        """Where torch cannot even be imported."""
        return cls(stage="before torch", torch="not imported", findings=findings, handled=(), absent=(), repaired=())

    @property
    def status(self) -> str:
        """One of "pass", "fail" or "error", as the exit code."""
        return STATUS[self.exit_code]

    @property
    def exit_code(self) -> int:
        """0, 1 where something is broken, 3 where something could not be judged."""
        statuses = {finding.status for finding in self.findings}
        return CRASHED if "error" in statuses else FINDINGS if "fail" in statuses else OK

    def document(self) -> dict[str, Any]:
        """For ``--json`` and the run record."""
        return {
            "stage": self.stage,
            "torch": self.torch,
            "status": self.status,
            "findings": [
                {"id": f.id, "status": f.status, "subject": f.subject, "message": f.message, "fix": f.fix}
                for f in self.findings
            ],
            "handled": [
                {"id": h.id, "name": h.name, "found": h.found, "handled_by": h.handled_by} for h in self.handled
            ],
            "absent": [{"id": h.id, "name": h.name, "found": h.found} for h in self.absent],
            "repaired": list(self.repaired),
        }


def check(
    stage: str = "now",
    *,
    policy: Policy = POLICY,
    needed_graphs: int = 1,
    tries: bool = True,
    may_repair: bool = True,
    more: Sequence[Finding] = (),
) -> Preflight:
    """Judge this process and thread; one thread at a time, since the tries of one would break those of another.

    ``tries`` runs the experiments too, unless the state is broken already; without it the call is cheap and fit for
    any thread. ``more``: findings of others to report along.

    Raises:
        UsageError: ``tries`` after ``forbid_recompiles``, or under a setting that they do not survive.
        ConfigError: ``policy`` is none, or ``needed_graphs`` no number of graphs.
        CheckCrashed: this torch lacks something that is read, another thread gives no answer, or a try met an error
            that is no answer, such as one that a setting of Dynamo makes.
    """
    if not isinstance(policy, Policy):
        raise ConfigError(f"preflight.check: got policy={policy!r}, allowed is a Policy, such as policy.POLICY")
    if not isinstance(needed_graphs, int) or needed_graphs < 0:
        raise ConfigError(f"preflight.check: got needed_graphs={needed_graphs!r}, allowed are whole numbers from 0")
    with _judging.held():
        return _judge(stage, policy, needed_graphs, tries, may_repair, more)


def _judge(
    stage: str, policy: Policy, needed_graphs: int, tries: bool, may_repair: bool, more: Sequence[Finding]
) -> Preflight:
    import torch

    from dflash.compile.behaviour import try_out
    from dflash.compile.state import look, repair

    try:
        state = look(policy, needed_graphs)
    except AttributeError as error:  # of torch's own names, none of them public
        raise CheckCrashed(
            f"preflight ({stage}): torch {torch.__version__} keeps its compile state elsewhere ({error}): "
            f"the answer is unknown; use a release that docs/LOG.md has results of"
        ) from error
    if tries and state.stance.startswith("fail_on_recompile"):
        raise UsageError(
            f"preflight ({stage}): its tries compile, which is forbidden by now: check before forbid_recompiles, "
            f"or with tries=False"
        )
    if tries and (unfit := [name for name in UNFIT_FOR_TRIES if getattr(torch._dynamo.config, name, False)]):
        raise UsageError(
            f"preflight ({stage}): its tries do not work under torch._dynamo.config.{unfit[0]}: "
            f"check before it is set, or with tries=False"
        )
    repaired = repair(state, policy) if may_repair else ()
    if repaired:
        state = look(policy, needed_graphs)
    found = (*more, *run_checks(MACHINE_CHECKS, look_at_machine()), *run_checks(STATE_CHECKS, state))
    broken = tuple(finding for finding in found if finding.status != "skip")
    hazards: tuple[Hazard, ...] = ()
    if tries and not broken:
        try:
            behaviour = try_out(policy)
        except ToolError:
            raise
        except Exception as error:
            words = str(error).strip().partition("\n")[0]
            raise CheckCrashed(
                f"preflight ({stage}): its tries do not work here ({type(error).__name__}: {words}): take back "
                f"what was set in torch._dynamo.config before"
            ) from error
        hazards = behaviour.hazards
        broken += run_checks(BEHAVIOUR_CHECKS, behaviour)
    return Preflight(
        stage=stage,
        torch=torch.__version__,
        findings=broken,
        handled=tuple(hazard for hazard in hazards if hazard.present and hazard.handled),
        absent=tuple(hazard for hazard in hazards if not hazard.present),
        repaired=repaired,
    )


def host_findings() -> tuple[Finding, ...]:
    """Doctor's checks of what a compile needs: a C++ compiler, the cache directory, disk (DFL001 to DFL003)."""
    from dflash.doctor import CHECKS
    from dflash.host import look_at_host

    needed = [each for each in CHECKS if each.id in ("DFL001", "DFL002", "DFL003")]
    return tuple(finding for finding in run_checks(needed, look_at_host()) if finding.status != "skip")


def require(result: Preflight) -> Preflight:
    """Return a sound result.

    Raises:
        PreflightError: something is broken; one line a finding, with its remedy.
        CheckCrashed: a check could not be run.
        ConfigError: it is no result of ``check``.
    """
    if not isinstance(result, Preflight):
        raise ConfigError(f"preflight.require: got {result!r}, allowed is what preflight.check returns")
    if not result.findings:
        return result
    lines = [f"{f.id} {f.message}; {f.fix}" for f in result.findings]
    lines[0] = f"preflight ({result.stage}, torch {result.torch}): {lines[0]}"
    unjudged = any(finding.status == "error" for finding in result.findings)
    raise (CheckCrashed if unjudged else PreflightError)("\n".join(lines))


def render(result: Preflight) -> str:
    """Text for a person."""
    lines = [f"preflight, {result.stage}: torch {result.torch}"]
    lines += [f"  repaired  {what}" for what in result.repaired]
    for finding in result.findings:
        lines += [f"  {finding.status:<8}  {finding.id}  {finding.message}", f"                    fix: {finding.fix}"]
    lines += [f"  handled   {h.id}  {h.name}: {h.found}; handled by {h.handled_by}" for h in result.handled]
    lines += [f"  absent    {h.id}  {h.name}: {h.found}" for h in result.absent]
    count = len(result.findings)
    lines.append(f"  broken: {count} finding{'s' * (count > 1)}" if count else "  broken: nothing")
    return "\n".join(lines) + "\n"
