"""From an issue to a verified repair: intake, baseline, candidates, verification, report. `flow` holds the order."""
