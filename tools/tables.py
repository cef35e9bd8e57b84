"""Tables in README and documentation, written from result files: `make tables`."""

from pathlib import Path

from experiments.report import compare, markdown_table, read
from experiments.report.gains import gain_text
from tools.compression_tables import compression_tables
from tools.sparsity_tables import sparsity_tables
from tools.sweep_tables import sweep_tables
from tools.uci_tables import uci_tables

ROOT = Path(__file__).parents[1]
_ALL = (
    ("README.md", "demo table", "results/demo"),
    ("docs/quality.md", "quality tables", "results/quality"),
    ("docs/papers/k-tied.md", "k-tied tables", "results/k-tied"),
    ("docs/papers/matrix-normal.md", "matrix-normal tables", "results/matrix-normal"),
    ("docs/papers/matrix-normal.md", "auto-encoder tables", "results/vae"),
    ("docs/papers/radial-directional.md", "uci tables", "results/uci"),
    ("docs/papers/radial-directional.md", "compression tables", "results/compression"),
    ("docs/papers/overparameterised.md", "tempering tables", "results/tempering"),
)
TABLES = tuple(one for one in _ALL if (ROOT / one[2]).exists())  # what was run
_OWN = {  # tables of another form
    "results/uci": uci_tables,  # nine tables are too many for one each
    "results/tempering": sweep_tables,  # a variant for every temperature
}
_BESIDE = {  # tables that stand below the usual one
    "results/compression": compression_tables,
    "results/matrix-normal": sparsity_tables,
}


def marks(name: str) -> tuple[str, str]:
    """The comments between which a table stands."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def table_of(results: str) -> str:
    """The table of the result files in a folder."""
    if results in _OWN:
        return _OWN[results](ROOT / results)
    found, problems = read(ROOT / results)
    if problems or not found:
        raise ValueError(f"{results}: {problems or 'no result files'}")
    table = compare(found)
    text = f"{markdown_table(table).strip()}\n\n{gain_text(table)}".strip()
    more = _BESIDE[results](found) if results in _BESIDE else ""
    return f"{text}\n\n{more}".strip()


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
