"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const state = { ground: 0, scenario: new Set(), candidate: new Set() };
  const drawn = new Map();
  const MOST_LINES = data.shownLines;

  function all(selector, inside = document) {
    return Array.from(inside.querySelectorAll(selector));
  }

  function readFilters() {
    for (const name of ["scenario", "candidate"]) {
      const boxes = all(`input[name="${name}"]`);
      state[name] = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    }
  }

  function isShown(record) {
    const ground = data.grounds[state.ground];
    if (record.ground !== undefined && record.ground !== state.ground) return false;
    if (ground && record.model !== undefined && record.model !== ground.model) return false;
    if (ground && record.gpu !== undefined && record.gpu !== ground.gpu) return false;
    const known = data.known;
    const keeps = (name) =>
      record[name] === undefined || !known[name].includes(record[name]) || state[name].has(record[name]);
    return keeps("scenario") && keeps("candidate");
  }

  function filterRows() {
    for (const row of all("tr[data-ground], tr[data-model], tr[data-scenario], tr[data-candidate]")) {
      const { ground, scenario, candidate, model, gpu } = row.dataset;
      const record = { scenario, candidate, model, gpu };
      if (ground !== undefined) record.ground = Number(ground);
      row.dataset.off = isShown(record) ? "" : "1";
    }
    all("main table").forEach(limitRows);
    for (const section of all("section.ground")) {
      section.hidden = Number(section.dataset.ground) !== state.ground;
    }
  }

  // A table of thousands of lines is slow to lay out; the first are shown, and the rest on request.
  function limitRows(table) {
    const wanted = Array.from(table.tBodies[0].rows).filter((row) => !row.dataset.off);
    const shown = table.dataset.all ? wanted.length : MOST_LINES;
    for (const row of table.tBodies[0].rows) row.hidden = true;
    for (const row of wanted.slice(0, shown)) row.hidden = false;
    const more = table.parentElement.parentElement.querySelector(".more");
    if (!more) return;
    more.hidden = wanted.length <= shown;
    more.textContent = `Show all ${wanted.length.toLocaleString("en")} lines`;
  }

  function themed() {
    const style = getComputedStyle(root);
    const ink = style.getPropertyValue("--ink").trim();
    const soft = style.getPropertyValue("--soft").trim();
    const line = style.getPropertyValue("--line").trim();
    const words = { labelColor: ink, titleColor: ink };
    return {
      background: "transparent",
      font: "system-ui, sans-serif",
      axis: { ...words, gridColor: line, domainColor: soft, tickColor: soft, labelFontSize: 12 },
      legend: { ...words, labelFontSize: 12 },
      header: { ...words },
      title: { color: ink },
      view: { stroke: null },
    };
  }

  async function draw(chart) {
    const place = document.getElementById("chart-" + chart.name);
    const records = data.sets[chart.data].filter(isShown);
    const empty = place.closest("section").querySelector(".empty");
    empty.hidden = records.length > 0;
    place.parentElement.hidden = records.length === 0;
    drawn.set(chart.name, true);
    if (records.length === 0) return;
    const spec = { ...chart.spec, datasets: { [chart.data]: records } };
    await window.vegaEmbed(place, spec, { actions: false, renderer: "svg", config: themed() });
    place.dataset.records = records.length;
  }

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const name = entry.target.id.replace("chart-", "");
      if (entry.isIntersecting && !drawn.get(name)) {
        draw(data.charts.find((chart) => chart.name === name));
      }
    }
  }, { rootMargin: "400px" });

  function redraw() {
    drawn.clear();
    for (const chart of data.charts) {
      const place = document.getElementById("chart-" + chart.name);
      place.parentElement.hidden = false;
      watcher.unobserve(place);
      watcher.observe(place);
    }
  }

  function apply() {
    readFilters();
    filterRows();
    redraw();
  }

  function chooseSetup(changed) {
    const wanted = {};
    for (const name of ["model", "gpu", "engine"]) wanted[name] = document.getElementById(name).value;
    const fits = (ground, names) => names.every((name) => ground[name] === wanted[name]);
    let place = data.grounds.findIndex((ground) => fits(ground, ["model", "gpu", "engine"]));
    if (place < 0) place = data.grounds.findIndex((ground) => fits(ground, [changed]));
    state.ground = Math.max(place, 0);
    showSetup();
    apply();
  }

  function showSetup() {
    for (const name of ["model", "gpu", "engine"]) {
      const box = document.getElementById(name);
      if (box) box.value = data.grounds[state.ground][name];
    }
  }

  function sortBy(header) {
    const table = header.closest("table");
    const place = Array.from(header.parentElement.children).indexOf(header);
    const up = header.getAttribute("aria-sort") !== "ascending";
    for (const other of all("th[aria-sort]", table)) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const value = (row) => {
      const cell = row.children[place];
      return cell.dataset.sort === undefined ? cell.textContent : Number(cell.dataset.sort);
    };
    const rows = Array.from(body.rows).map((row) => ({ row, value: value(row) }));
    rows.sort((one, other) => compare(one.value, other.value, up));
    body.append(...rows.map((item) => item.row));
    limitRows(table);
  }

  function compare(one, other, up) {
    const missing = (value) => value === "" || value === "-" || Number.isNaN(value);
    if (missing(one) || missing(other)) return missing(one) - missing(other);
    const order = typeof one === "number" && typeof other === "number"
      ? one - other : String(one).localeCompare(String(other));
    return up ? order : -order;
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

  document.getElementById("theme").addEventListener("click", () => {
    setTheme(root.dataset.theme === "dark" ? "light" : "dark");
    redraw();
  });
  for (const box of all(".filters input")) box.addEventListener("change", apply);
  for (const box of all(".setups select")) box.addEventListener("change", () => chooseSetup(box.id));
  for (const button of all("[data-all], [data-none]")) {
    button.addEventListener("click", () => {
      const name = button.dataset.all || button.dataset.none;
      for (const box of all(`input[name="${name}"]`)) box.checked = Boolean(button.dataset.all);
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
  matchMedia("print").addEventListener("change", () => data.charts.forEach(draw));
  window.addEventListener("beforeprint", () => data.charts.forEach(draw));
  setTheme(firstTheme());
  if (data.grounds.length > 1) showSetup();
  apply();
})();
