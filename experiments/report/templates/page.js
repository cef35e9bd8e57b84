"use strict";
(() => {
  /** Show in the figures what the legend's button says, but not in parts that have a legend of their own. */
  function toggle(button) {
    const scope = button.closest("[data-scope]");
    const off = button.getAttribute("aria-pressed") === "false";
    for (const line of scope.querySelectorAll(`[data-series="${button.value}"]`)) {
      if (line.closest("[data-scope]") === scope) {
        line.style.display = off ? "none" : "";
      }
    }
  }

  for (const button of document.querySelectorAll(".legend button")) {
    toggle(button);
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      toggle(button);
    });
  }

  const language = new Intl.Collator("en", { numeric: true });

  /** Sort a table: the first column by its words, others by their numbers, rows without one last. */
  function sort(header) {
    const next = { ascending: "descending", descending: "ascending" };
    const first = header.dataset.first || "ascending";
    const direction = next[header.getAttribute("aria-sort")] || first;
    for (const other of header.parentElement.children) {
      other.setAttribute("aria-sort", other === header ? direction : "none");
    }
    const sign = direction === "ascending" ? 1 : -1;
    const words = (row) => row.cells[header.cellIndex].textContent.trim();
    const number = (row) => parseFloat(words(row).replaceAll(",", "").replace("−", "-"));
    const [body] = header.closest("table").tBodies;
    const rows = [...body.rows].sort((a, b) => {
      if (header.cellIndex === 0) {
        return sign * language.compare(words(a), words(b));
      }
      const [x, y] = [number(a), number(b)];
      return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) : sign * (x - y);
    });
    body.append(...rows);
  }

  for (const button of document.querySelectorAll(".scores thead button")) {
    button.addEventListener("click", () => sort(button.closest("th")));
  }
})();
