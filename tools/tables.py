"""Tables in README and documentation, written from result files: `make tables`."""

from pathlib import Path

from tools.uci_tables import uci_tables
from weft.report import compare, markdown_table, read

ROOT = Path(__file__).parents[1]
TABLES = (
    ("README.md", "demo table", "results/demo"),
    ("docs/quality.md", "quality tables", "results/quality"),
    ("docs/papers/k-tied.md", "k-tied tables", "results/k-tied"),
)


def marks(name: str) -> tuple[str, str]:
    """The comments between which a table stands."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def table_of(results: str) -> str:
    """The table of the result files in a folder."""
    if results == "results/uci":  # nine tables are too many for one each
        return uci_tables(ROOT / results)
    found, problems = read(ROOT / results)
    if problems or not found:
        raise ValueError(f"{results}: {problems or 'no result files'}")
    return markdown_table(compare(found)).strip()


def shown(page: str, name: str) -> str:
    """The table as it stands in a page."""
    begin, end = marks(name)
    return (ROOT / page).read_text().partition(begin)[2].partition(end)[0].strip()


def main() -> None:
    """Put every table into its page."""
    for page, name, results in TABLES:
        path, (begin, end) = ROOT / page, marks(name)
        before, _, rest = path.read_text().partition(begin)
        after = rest.partition(end)[2]
        path.write_text(f"{before}{begin}\n\n{table_of(results)}\n\n{end}{after}")


if __name__ == "__main__":
    main()
