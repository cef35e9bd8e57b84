"""Result files as one HTML page and as tables for the terminal; no training code."""

from experiments.report.page import write_report
from experiments.report.reading import Result, read
from experiments.report.score_tables import Cell, ScoreRow, ScoreTable, compare
from experiments.report.text_tables import markdown_table, print_table, text_table

__all__ = [
    "Cell",
    "Result",
    "ScoreRow",
    "ScoreTable",
    "compare",
    "markdown_table",
    "print_table",
    "read",
    "text_table",
    "write_report",
]
