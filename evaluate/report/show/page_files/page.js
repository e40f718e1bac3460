"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  for (const [name, set] of Object.entries(data.sets)) {
    const record = (line) => Object.fromEntries(set.fields.map((field, place) => [field, line[place]]));
    data.sets[name] = set.lines.map(record);
  }
  const root = document.documentElement;
  const state = { setup: data.opening, scenario: new Set(), candidate: new Set() };
  const FILTERS = { scenario: "scenarios", candidate: "checkpoints" };

  const emptyColumns = document.head.appendChild(document.createElement("style"));

  function all(selector, inside = document) {
    return Array.from(inside.querySelectorAll(selector));
  }

  function here() {
    return data.setups[state.setup] || { loads: {}, candidates: [] };
  }

  // What the chosen setup has of a filter's names.
  function offered(name) {
    const found = new Set(name === "scenario" ? Object.keys(here().loads) : here().candidates);
    return data.known[name].filter((value) => found.has(value));
  }

  function readFilters() {
    const left = [];
    for (const [name, title] of Object.entries(FILTERS)) {
      const values = offered(name);
      for (const box of all(`input[name="${name}"]`)) {
        box.parentElement.hidden = !values.includes(box.value);
      }
      const boxes = all(`input[name="${name}"]`).filter((box) => box.checked);
      state[name] = new Set(boxes.map((box) => box.value));
      const kept = values.filter((value) => state[name].has(value)).length;
      const group = document.querySelector(`[data-all="${name}"]`)?.closest("fieldset");
      if (group) group.hidden = values.length === 0;
      if (values.length) left.push({ words: `${kept} of ${values.length} ${title}`, all: kept === values.length });
    }
    const summary = document.querySelector(".filters summary");
    if (!summary) return;
    summary.textContent = `Filters: ${left.map((part) => part.words).join(", ")}`;
    const printed = document.querySelector(".filtered");
    printed.hidden = left.every((part) => part.all);
    printed.textContent = `Filtered: ${left.map((part) => part.words).join(", ")} are shown.`;
  }

  function isOfSetup(record) {
    return (record.setups ?? null) === null || record.setups.includes(state.setup);
  }

  function isKept(record) {
    return Object.keys(FILTERS).every((name) =>
      record[name] === undefined || !data.known[name].includes(record[name]) || state[name].has(record[name]));
  }

  function recordsOf(chart) {
    const has = (record) => !chart.value || (record[chart.value] ?? null) !== null;
    const found = data.sets[chart.data].filter(isOfSetup).filter(has);
    const kept = found.filter(isKept).map((record) => ({ ...record, load: loadWords(record.scenario) }));
    return { records: kept, any: found.length > 0 };
  }

  function loadWords(name) {
    return Object.hasOwn(here().loads, name) ? here().loads[name] : "";
  }

  // Everything that belongs to a setup follows the choice of it.
  function filterPage() {
    for (const part of all("[data-setups]:not(tr)")) {
      const record = { setups: part.dataset.setups.split(" ").map(Number) };
      if (part.dataset.scenario !== undefined) record.scenario = part.dataset.scenario;
      part.hidden = !isOfSetup(record) || !isKept(record);
    }
    for (const row of all(".picks tbody tr, .data tbody tr")) {
      const { setups, scenario, candidate } = row.dataset;
      const record = { setups: setups?.split(" ").map(Number), scenario, candidate };
      row.dataset.off = isOfSetup(record) && isKept(record) ? "" : "1";
      row.dataset.other = isOfSetup(record) ? "" : "1";
    }
    all(".picks table, .data table").forEach(limitRows);
    for (const section of all("section.data")) {
      section.hidden = all("tbody tr", section).every((row) => row.dataset.other);
    }
    for (const words of all("[data-explains]")) {
      words.hidden = document.getElementById(words.dataset.explains).closest("section").hidden;
    }
    hideEmptyColumns();
    for (const section of all("section.sentences")) {
      section.hidden = all("ul:not([hidden]) li", section).length === 0;
    }
  }

  // A column that says nothing of the chosen setup takes no room.
  function hideEmptyColumns() {
    const rules = [];
    for (const table of all("section.data table")) {
      const rows = all("tbody tr", table).filter((row) => !row.dataset.other);
      for (let place = 0; place < table.tHead.rows[0].cells.length; place++) {
        if (rows.every((row) => ["", "-"].includes(row.children[place].textContent))) {
          rules.push(`#${CSS.escape(table.id)} tr > :nth-child(${place + 1}) { display: none; }`);
        }
      }
    }
    emptyColumns.textContent = rules.join("\n");
  }

  function showContents() {
    for (const link of all("nav a")) {
      const target = document.getElementById(link.getAttribute("href").slice(1));
      link.parentElement.hidden = target.closest("section").hidden;
    }
  }

  // A table of thousands of lines is slow to lay out; the first are shown, and the rest on request.
  function limitRows(table) {
    const rows = Array.from(table.tBodies[0].rows);
    const wanted = rows.filter((row) => !row.dataset.off);
    const most = Number(table.dataset.most || data.shownLines);
    const shown = table.dataset.all ? wanted.length : most;
    for (const row of rows) {
      row.hidden = true;
      delete row.dataset.over;
    }
    wanted.forEach((row, place) => {
      if (place < shown) row.hidden = false;
      else row.dataset.over = "1";
    });
    const more = table.parentElement.parentElement.querySelector(".more");
    more.hidden = wanted.length <= shown;
    more.textContent = `Show all ${wanted.length.toLocaleString("en")} lines`;
  }

  function apply() {
    readFilters();
    filterPage();
    whatIf.show(state.setup);
    charts.redraw();
    showContents();
  }

  function chooseSetup(changed) {
    const wanted = {};
    for (const name of ["model", "gpu", "engine"]) wanted[name] = document.getElementById(name).value;
    const fits = (setup, names) => names.every((name) => setup[name] === wanted[name]);
    let place = data.setups.findIndex((setup) => fits(setup, ["model", "gpu", "engine"]));
    if (place < 0) place = data.setups.findIndex((setup) => fits(setup, [changed]));
    state.setup = Math.max(place, 0);
    showSetup();
    apply();
  }

  function showSetup() {
    for (const name of ["model", "gpu", "engine"]) {
      const box = document.getElementById(name);
      if (box) box.value = here()[name];
    }
  }

  function sortBy(header) {
    const table = header.closest("table");
    const place = Array.from(header.parentElement.children).indexOf(header);
    const up = header.getAttribute("aria-sort") !== "ascending";
    for (const other of all("th[aria-sort]", table)) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const isText = header.classList.contains("t") && !body.querySelector(`td:nth-child(${place + 1})[data-sort]`);
    const value = (row) => {
      const cell = row.children[place];
      return isText ? cell.textContent : Number(cell.dataset.sort ?? NaN);
    };
    const rows = Array.from(body.rows).map((row) => ({ row, value: value(row) }));
    rows.sort((one, other) => compare(one.value, other.value, up));
    body.append(...rows.map((item) => item.row));
    limitRows(table);
  }

  function compare(one, other, up) {
    const missing = (value) => value === "" || value === "-" || Number.isNaN(value);
    if (missing(one) || missing(other)) return missing(one) - missing(other);
    const order = typeof one === "number" ? one - other : one.localeCompare(other, "en", { numeric: true });
    return up ? order : -order;
  }

  // A page from a file may have no clipboard; then the text is selected, to be copied by hand.
  async function copyText(button, text) {
    const name = button.dataset.name ?? (button.dataset.name = button.textContent);
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch (error) {
      const shown = button.previousElementSibling;
      if (shown) getSelection().selectAllChildren(shown);
      button.textContent = shown ? "Selected" : "Not copied";
    }
    setTimeout(() => { button.textContent = name; }, 1500);
  }

  function setTheme(name) {
    root.dataset.theme = name;
    const button = document.getElementById("theme");
    button.textContent = name === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(name === "dark"));
    try { localStorage.setItem("quantline-theme", name); } catch (error) { /* a file may have none */ }
  }

  function firstTheme() {
    try { if (localStorage.getItem("quantline-theme")) return localStorage.getItem("quantline-theme"); } catch (error) { /* as above */ }
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }

  function print(start) {
    for (const part of all("details")) {
      if (start) {
        part.dataset.was = part.open ? "open" : "";
        part.open = true;
      } else if (part.dataset.was !== undefined) {
        part.open = part.dataset.was === "open";
      }
    }
    charts.print(start);
  }

  const charts = window.quantlineCharts(data, recordsOf, loadWords);
  const whatIf = window.quantlineWhatIf(data);
  if (whatIf.linkedSetup !== null) state.setup = whatIf.linkedSetup;
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".copy");
    if (button) await copyText(button, button.dataset.text ?? button.previousElementSibling.textContent);
  });
  document.getElementById("theme").addEventListener("click", () => {
    setTheme(root.dataset.theme === "dark" ? "light" : "dark");
    charts.redraw();
  });
  for (const box of all(".filters input")) box.addEventListener("change", apply);
  for (const box of all(".setups select")) box.addEventListener("change", () => chooseSetup(box.id));
  for (const button of all("[data-all], [data-none]")) {
    button.addEventListener("click", () => {
      const name = button.dataset.all || button.dataset.none;
      for (const box of all(`input[name="${name}"]`)) {
        if (!box.parentElement.hidden) box.checked = Boolean(button.dataset.all);
      }
      apply();
    });
  }
  for (const button of all(".more")) {
    button.addEventListener("click", () => {
      const table = button.parentElement.querySelector("table");
      table.dataset.all = "1";
      limitRows(table);
    });
  }
  for (const header of all("table.sortable thead th")) {
    header.querySelector("button").addEventListener("click", () => sortBy(header));
  }
  for (const form of all("form")) form.addEventListener("submit", (event) => event.preventDefault());
  const bar = document.querySelector(".filters");
  if (bar) {
    new ResizeObserver(() => {
      const sticks = getComputedStyle(bar).position === "sticky";
      root.style.setProperty("--bar", sticks ? `${bar.offsetHeight}px` : "0px");
    }).observe(bar);
  }
  const paper = matchMedia("print");
  paper.addEventListener("change", () => print(paper.matches));
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  setTheme(firstTheme());
  if (data.setups.length > 1) showSetup();
  apply();
})();
