"""Checks of episode data with coded findings: `check_source(source) -> DataReport`.

One family a file: poses, motion (actions against places), actions, geometry, identity, frames,
scenes, release. `catalogue.py` lists the codes, `run.py` runs them all in one pass.
"""

from vla_nav.episodes.checks.catalogue import CODES
from vla_nav.episodes.checks.findings import SEVERITIES, Example, Finding, Tally
from vla_nav.episodes.checks.run import DataReport, check_source

__all__ = ["CODES", "SEVERITIES", "DataReport", "Example", "Finding", "Tally", "check_source"]
