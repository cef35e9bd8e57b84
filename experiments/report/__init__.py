"""Result files as one HTML page and as tables for the terminal; no training code."""

from experiments.report.page import write_report
from experiments.report.results import (
    Group,
    Problem,
    Result,
    ResultError,
    Row,
    Table,
    compare,
    read,
)
from experiments.report.scores import Cell
from experiments.report.terminal import markdown_table, print_table, text_table

__all__ = [
    "Cell",
    "Group",
    "Problem",
    "Result",
    "ResultError",
    "Row",
    "Table",
    "compare",
    "markdown_table",
    "print_table",
    "read",
    "text_table",
    "write_report",
]
