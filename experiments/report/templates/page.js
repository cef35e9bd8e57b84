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

  /** Sort a table, one body per variant; what has no value comes last in either direction. */
  function sort(header) {
    const next = { ascending: "descending", descending: "ascending" };
    const first = header.dataset.first || "ascending";
    const direction = next[header.getAttribute("aria-sort")] || first;
    for (const other of header.parentElement.children) {
      other.setAttribute("aria-sort", other === header ? direction : "none");
    }
    const sign = direction === "ascending" ? 1 : -1;
    const value = (body) => body.rows[0].cells[header.cellIndex].dataset.value;
    const compare = (a, b) => (a - b) || language.compare(a, b);
    const table = header.closest("table");
    const bodies = [...table.tBodies].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      const known = (x === undefined) - (y === undefined);
      return x === undefined || y === undefined ? known : sign * compare(x, y);
    });
    table.append(...bodies);
  }

  for (const button of document.querySelectorAll(".scores thead button")) {
    button.addEventListener("click", () => sort(button.closest("th")));
  }
})();
