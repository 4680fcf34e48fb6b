// Tables: a header sorts, a search field finds, a select filters, and a line says how many are left.
"use strict";
(() => {
  const cellValue = (row, column) => {
    const cell = row.cells[column];
    if (!cell) return "";
    const text = cell.dataset.value ?? cell.textContent.trim();
    const number = Number(text);
    return text !== "" && Number.isFinite(number) ? number : text;
  };

  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;  // what has no figure is last
    return a.localeCompare(b, undefined, { numeric: true });
  };

  function sort(table, column) {
    const header = table.tHead.rows[0].cells[column];
    const rising = header.getAttribute("aria-sort") !== "ascending";
    for (const one of table.tHead.rows[0].cells) one.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    const sign = rising ? 1 : -1;
    rows.sort((a, b) => sign * compare(cellValue(a, column), cellValue(b, column)));
    table.tBodies[0].append(...rows);
  }

  // on a narrow screen a row is a card, and every cell says what it is
  function label(table) {
    const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, i) => { if (cell.colSpan === 1) cell.dataset.label = names[i]; });
    }
  }
  window.labelCells = label;

  for (const table of document.querySelectorAll("table[data-sortable]")) {
    label(table);
    [...table.tHead.rows[0].cells].forEach((header, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      button.addEventListener("click", () => sort(table, column));
      header.append(button);
    });
  }

  // a search is words that must all occur; one with special characters is a regular expression too
  function matcher(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const tests = words.map((word) => {
      let pattern = null;
      try { pattern = new RegExp(word); } catch { /* it is plain text then */ }
      return (line) => line.includes(word) || (pattern !== null && pattern.test(line));
    });
    return (line) => tests.every((test) => test(line));
  }

  function narrow(table) {
    const search = document.querySelector(`[data-search="${table.id}"]`);
    const filter = document.querySelector(`[data-filter="${table.id}"]`);
    const matches = matcher(search ? search.value : "");
    const group = filter ? filter.value : "";
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const cells = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !(matches(cells) && (group === "" || row.dataset.group === group));
      shown += !row.hidden;
    }
    const count = document.querySelector(`[data-count="${table.id}"]`);
    if (count) count.textContent = `${shown} of ${table.tBodies[0].rows.length} rows`;
  }

  for (const control of document.querySelectorAll("[data-search], [data-filter]")) {
    const table = document.getElementById(control.dataset.search ?? control.dataset.filter);
    control.addEventListener("input", () => narrow(table));
    narrow(table);
  }
})();
