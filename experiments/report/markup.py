"""HTML that is escaped by construction: text becomes markup only through `el` and `join`."""

import html
import json
import re
from collections.abc import Iterable

_VOID = frozenset({"img", "line", "meta", "path", "rect"})


class Html(str):
    """Text that is markup already and is not escaped again."""


def el(name: str, *children: "str | None", **attributes: "str | int | float | bool | None") -> Html:
    """One element; children that are not `Html` and all attribute values are escaped.

    Args:
        name: of the element.
        children: text or markup; None is nothing.
        attributes: `class_` is class, `aria_label` is aria-label; None and False leave it out.

    Examples:
        >>> el("p", "1 < 2", el("b", "!"), class_="note", hidden=True)
        '<p class="note" hidden>1 &lt; 2<b>!</b></p>'
    """
    told = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{_escape(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{told}>" if name in ("img", "meta") else f"<{name}{told}/>")
    return Html(f"<{name}{told}>{join(children)}</{name}>")


def scrolling(table: Html, label: str, class_: str = "scroll") -> Html:
    """A table that scrolls inside the page, also with the keyboard."""
    return el("div", table, class_=class_, role="region", aria_label=label, tabindex=0)


def sortable(label: str, explanation: str, first: str, class_: str | None = None) -> Html:
    """A column heading whose button sorts the table; page.js does it.

    Args:
        label: text of the button.
        explanation: more about the column, shown on hovering.
        first: direction of the first click, "ascending" or "descending".
        class_: of the heading.
    """
    button = el("button", label, type="button", title=explanation or None)
    return el("th", button, scope="col", class_=class_, aria_sort="none", data_first=first)


def join(parts: Iterable[str | None]) -> Html:
    """Markup and text one after the other, the text escaped."""
    return Html(
        "".join(p if isinstance(p, Html) else html.escape(p) for p in parts if p is not None)
    )


def embedded(data: object) -> Html:
    r"""JSON for a script element of the page, which no text in it can end.

    Examples:
        >>> embedded({"name": "</script>"})
        '<script type="application/json">{"name":"\\u003c/script\\u003e"}</script>'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)  # ASCII only
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Html(f'<script type="application/json">{text}</script>')


def plot_text(text: str) -> str:
    """Text for a label in Plotly, which reads tags, entities and templates in it.

    Examples:
        >>> plot_text("<b> %{x}")
        '&lt;b&gt; %&#123;x}'
    """
    return html.escape(text, quote=False).replace("%{", "%&#123;")


def slug(text: str, taken: set[str]) -> str:
    """A name for a link target, different from those taken, to which it is added.

    Examples:
        >>> taken: set[str] = set()
        >>> slug("quality/Fashion MNIST", taken), slug("quality fashion-mnist", taken)
        ('quality-fashion-mnist', 'quality-fashion-mnist-2')
    """
    base = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "experiment"
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    taken.add(name)
    return name


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _escape(value: object) -> str:
    return html.escape(str(value))
