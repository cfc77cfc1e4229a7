"""Reports: what the log of a training says, as charts in one HTML page or a PNG."""

from cavs.inspect.report.write import SUFFIXES, write_report

__all__ = ["SUFFIXES", "write_report"]
