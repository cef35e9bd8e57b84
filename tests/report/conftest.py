"""The page of the report, parsed."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from experiments.report import Result, write_report

VOID = {"meta", "img", "input"}


class Reader(HTMLParser):
    """Text and elements of a page; elements that do not close properly are an error."""

    def __init__(self):
        super().__init__()
        self.stack, self.elements, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] != "style":
            self.text.append(data)


@pytest.fixture
def render(tmp_path):
    """A function from runs to the parsed page."""

    def rendered(runs, **options):
        results = [run if isinstance(run, Result) else Result.from_dict(run) for run in runs]
        path = write_report(results, tmp_path / "report.html", **options)
        reader = Reader()
        text = path.read_text(encoding="utf-8")
        reader.feed(text)
        reader.close()
        assert reader.stack == []
        reader.all_text = re.sub(r"\s+", " ", "".join(reader.text))
        drawn = re.findall(r'<svg class="plot".*?</svg>', text, re.DOTALL)
        reader.figures = [ElementTree.fromstring(figure) for figure in drawn]
        return reader

    return rendered
