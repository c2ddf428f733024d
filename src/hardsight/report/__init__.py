"""The report: one self-contained page that shows which samples are hard."""

from hardsight.report.write import write_report as write_report
