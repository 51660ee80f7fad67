"""Choosing a checkpoint, and putting it back."""

from holdfast.recovery.planning import RecoveryPlan, Skipped, Verdict, plan_recovery, plan_running_again
from holdfast.recovery.restoring import RestoreReport, restore

__all__ = [
    "RecoveryPlan",
    "RestoreReport",
    "Skipped",
    "Verdict",
    "plan_recovery",
    "plan_running_again",
    "restore",
]
