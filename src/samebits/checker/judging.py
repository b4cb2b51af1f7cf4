"""Carries out a plan: each promise judged, then its planted faults, which the same check must catch.

Knows no promise by name and no operator; what cannot run is "could not be judged", never a pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from samebits.checker.adversary import examine
from samebits.checker.environment import environment, unavailable
from samebits.checker.obligations import Judgement
from samebits.checker.outcome import Outcome, outcome
from samebits.checker.planning import Plan
from samebits.checker.targets import OPERATORS, Home, import_function
from samebits.records.report import Finding, Report, Verdict


def execute(
    plan: Plan,
    progress: Callable[[str], None] = lambda _: None,
    found: Callable[[Finding], None] = lambda _: None,
    home: Home = OPERATORS,
) -> Report:
    """Judges everything in the plan; `progress` is told what is judged now, `found` each finding as it is made."""
    findings: list[Finding] = []
    for judgement in plan.judgements:
        progress(f"{judgement.subject} {judgement.promise} {judgement.backend}")
        findings.append(judge(judgement))
        found(findings[-1])
    reports = []
    for request in plan.requests:
        reports.append(examine(request, home, progress))
        for finding in reports[-1].findings:
            found(finding)
    return Report(
        findings=(*findings, *(finding for report in reports for finding in report.findings)),
        environment=environment(),
        notes=tuple(note for report in reports for note in report.notes),
        coverage=reports[0].coverage if len(reports) == 1 else {},
    )


def judge(judgement: Judgement) -> Finding:
    """One finding: the promise on the subject, and on every planted fault if the subject keeps it."""
    started = time.perf_counter()
    result = _outcome(judgement)
    caught, planted = 0, 0
    if result.verdict is Verdict.HOLDS:
        planted = len(judgement.mutants)
        survivors = [text for text in (_survivor(judgement, *fault) for fault in judgement.mutants.items()) if text]
        caught = planted - len(survivors)
        if survivors:
            result = replace(result, verdict=Verdict.DOES_NOT_HOLD, detail="; ".join(survivors))
    failed = result.verdict is Verdict.DOES_NOT_HOLD
    # What no command can import is judged again from Python.
    options = f" {result.again}" if result.again and judgement.setting.importable else ""
    reproduce = f"{judgement.command}{options}" if failed else ""
    return Finding(
        subject=judgement.subject,
        promise=judgement.promise,
        backend=judgement.backend,
        verdict=result.verdict,
        cases=result.cases,
        detail=result.detail,
        reproduce=reproduce,
        obligation=judgement.obligation,
        faults_caught=caught,
        faults_planted=planted,
        seconds=round(time.perf_counter() - started, 3),
    )


def _outcome(judgement: Judgement) -> Outcome:
    check = judgement.check
    if check is None:
        return _unjudged(f"no check for {judgement.promise!r} exists yet")
    for backend in judgement.backend.split(", "):
        lack = unavailable(backend, component=judgement.component)
        if lack:
            return _unjudged(lack)
    return outcome(check(judgement.setting, judgement.cases))


def _unjudged(reason: str) -> Outcome:
    return Outcome(verdict=Verdict.COULD_NOT_BE_JUDGED, cases=0, detail=reason)


def _survivor(judgement: Judgement, identifier: str, importable: str) -> str:
    """Why a planted fault does not count as caught, or "". One that merely crashes shows nothing about the check."""
    planted = replace(judgement.setting, function=import_function(importable), importable=importable)
    assert judgement.check is not None  # the subject was judged by it
    result = outcome(judgement.check(planted, judgement.fault_cases))
    if result.raised:
        return f"planted fault {identifier} ({importable}) raised instead of differing: {result.detail}"
    if result.verdict is Verdict.DOES_NOT_HOLD:
        return ""
    return f"planted fault {identifier} ({importable}) survived: {result.verdict}"
