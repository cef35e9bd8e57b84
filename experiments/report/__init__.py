"""Result files as one HTML page and as tables for the terminal; no training code."""

from experiments.report.page import write_report
from experiments.report.reading import Result, read
from experiments.report.score_tables import compare
from experiments.report.text_tables import markdown_table, print_table, text_table

__all__ = [
    "Result",
    "compare",
    "markdown_table",
    "print_table",
    "read",
    "text_table",
    "write_report",
]
