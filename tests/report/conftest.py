"""The page of the report, parsed."""

import json
import re
from html.parser import HTMLParser

import pytest

from experiments.report import Result, page, write_report

VOID = {"meta", "img", "line"}


class Reader(HTMLParser):
    """Text and elements of a page; elements that do not close properly are an error."""

    def __init__(self):
        super().__init__()
        self.stack, self.elements, self.text, self.scripts = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] == "script":
            self.scripts.append(data)
        elif self.stack and self.stack[-1] != "style":
            self.text.append(data)


@pytest.fixture
def render(tmp_path, monkeypatch):
    """A function from runs to the parsed page, without the megabytes of Plotly."""
    monkeypatch.setattr(page, "get_plotlyjs", lambda: "")

    def rendered(runs, **options):
        results = [run if isinstance(run, Result) else Result.from_dict(run) for run in runs]
        path = write_report(results, tmp_path / "report.html", **options)
        reader = Reader()
        reader.feed(path.read_text(encoding="utf-8"))
        reader.close()
        assert reader.stack == []
        reader.all_text = re.sub(r"\s+", " ", "".join(reader.text))
        reader.figures = [json.loads(one) for one in reader.scripts if one.startswith("{")]
        return reader

    return rendered
