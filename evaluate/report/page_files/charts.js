"use strict";
// Draws the charts as wide as their cards, and again when a card, a filter or the theme changes.
window.quantlineCharts = function (data, recordsOf, loadWords) {
  const LEAST_TILE = 46; // pixels of a grid's column; with more columns than fit, it goes on below
  const LEAST_PANEL = 300;
  const LABELS = 0.4; // of the card's width, at the most
  const LEGEND_SYMBOL = 34;
  const NARROW = 700; // below it, what a name says in parentheses goes into a second line
  const NEAR = 3; // pixels between a chart's width and its card's
  const PRINT_WIDTH = 690; // of a page of A4 or Letter, in CSS pixels
  const NAME_LINES = {
    labelExpr: "split(replace(datum.label, ' (', '\\n('), '\\n')",
    labelLineHeight: 11,
    labelBaseline: { condition: { test: "indexof(datum.label, ' (') >= 0", value: "bottom" }, value: "middle" },
  };
  const root = document.documentElement;
  const pen = document.createElement("canvas").getContext("2d");
  const outside = new Map(); // pixels of a chart outside its panels: names, titles, gaps
  const drawings = new Map();
  let generation = 0;
  let printing = false;

  function placeOf(chart) {
    return document.getElementById("chart-" + chart.name);
  }

  function widthOf(place) {
    if (printing) return PRINT_WIDTH;
    const card = place.parentElement;
    const style = getComputedStyle(card);
    return Math.floor(card.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
  }

  function theme(width) {
    const style = getComputedStyle(root);
    const colour = (name) => style.getPropertyValue(name).trim();
    const [ink, soft, line] = printing ? ["#000", "#444", "#ccc"] : ["--ink", "--soft", "--line"].map(colour);
    const words = { labelColor: ink, titleColor: ink, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" };
    return {
      background: "transparent",
      font: "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif",
      padding: 2,
      axis: { ...words, labelFontSize: width < 500 ? 11 : 12, gridColor: line, domainColor: soft, tickColor: soft },
      legend: { ...words },
      header: { ...words, labelFontSize: 13, labelFontWeight: 600, labelAnchor: "start", labelLimit: width },
      title: { color: ink },
      text: { color: ink },
      view: { stroke: null },
    };
  }

  function distinct(records, field) {
    return new Set(records.map((record) => record[field])).size;
  }

  // The width of the longest name that a legend may hold.
  function longest(records) {
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const names = records.flatMap((record) => [record.candidate, record.kernel, record.engine, record.kind, record.advice]);
    return Math.max(...[...new Set(names)].map((name) => pen.measureText(name ?? "").width));
  }

  // How many panels stand side by side, or tiles in a panel of a grid.
  function across(chart, records, width) {
    const spec = chart.spec;
    if (spec.params) {
      const tiles = distinct(records, "scenario");
      const names = outside.get(chart.name + "/") ?? width * LABELS;
      const fit = Math.max(1, Math.floor((width - names) / LEAST_TILE));
      const panels = Math.ceil(tiles / fit);
      return Math.ceil(tiles / panels);
    }
    if (!spec.columns) return 1;
    const most = spec.concat ? spec.concat.length : distinct(records, spec.facet.field);
    return Math.max(1, Math.min(spec.columns, most, Math.floor(width / LEAST_PANEL)));
  }

  // The chart's spec with its sizes set: `inner` pixels for all panels side by side.
  function sized(chart, records, width, count, inner) {
    const names = new Set(records.map((record) => record.candidate));
    const shown = data.known.candidate.filter((name) => names.has(name));
    const legendColumns = Math.max(1, Math.floor(width / (LEGEND_SYMBOL + longest(records))));
    const isGrid = chart.spec.params !== undefined;
    function walk(node) {
      if (Array.isArray(node)) return node.map(walk);
      if (node === null || typeof node !== "object") return node;
      const found = {};
      for (const [key, value] of Object.entries(node)) found[key] = walk(value);
      if (node.mark || node.layer || node.facet || node.spec) {
        if (typeof node.width === "number") found.width = Math.floor(inner / (isGrid ? 1 : count));
      }
      if (node.symbolType && node.values) found.values = shown;
      if (node.orient === "bottom") {
        found.columns = legendColumns;
        found.labelLimit = Math.floor(width / legendColumns) - LEGEND_SYMBOL;
      } else if (node.labelLimit) {
        found.labelLimit = Math.min(node.labelLimit, Math.floor(width * LABELS));
        if (width < NARROW && !node.labelAngle) Object.assign(found, NAME_LINES);
      }
      return found;
    }
    const spec = walk(chart.spec);
    if (isGrid) spec.params = [{ ...spec.params[0], value: count }];
    else if (spec.columns) spec.columns = count;
    spec.datasets = { [chart.data]: records };
    return spec;
  }

  async function embed(place, spec, width) {
    const drawing = await window.vegaEmbed(place, spec, {
      actions: false, renderer: "svg", config: theme(width), tooltip: { theme: root.dataset.theme },
    });
    return { drawing, width: Number(place.querySelector("svg").getAttribute("width")) };
  }

  // What a chart takes outside its panels is known once it was drawn: first out of sight, with
  // panels as wide as the card, so that neither a title nor a legend is wider than they are.
  async function measured(chart, records, width, count) {
    const place = document.createElement("div");
    place.className = "measuring";
    document.body.append(place);
    const { drawing, width: whole } = await embed(place, sized(chart, records, width, count, width), width);
    drawing.finalize();
    place.remove();
    return whole - width;
  }

  async function draw(chart) {
    const mine = generation;
    const place = placeOf(chart);
    const section = place.closest("section");
    const { records, any } = recordsOf(chart);
    section.hidden = !any;
    section.querySelector(".empty").hidden = records.length > 0;
    place.parentElement.hidden = records.length === 0;
    if (records.length === 0) return;
    const width = widthOf(place);
    if (width < 1) return;
    let count = across(chart, records, width);
    const key = () => `${chart.name}/${chart.spec.params ? "" : count}`;
    let rest = outside.get(key());
    if (rest === undefined || rest > width * 0.8) {
      rest = await measured(chart, records, width, count);
      outside.set(key(), rest);
      count = across(chart, records, width);
      if (!outside.has(key())) outside.set(key(), (rest = await measured(chart, records, width, count)));
    }
    if (mine !== generation) return;
    const inner = Math.max(width - rest, 60);
    const result = await embed(place, sized(chart, records, width, count, inner), width);
    if (Math.abs(result.width - width) > NEAR) outside.delete(key());
    drawings.get(chart.name)?.finalize();
    drawings.set(chart.name, result.drawing);
    explain(place);
    place.dataset.records = records.length;
    place.dataset.width = width;
  }

  // A name on an axis says in full what it is.
  function explain(place) {
    for (const text of place.querySelectorAll(".role-axis-label text, .role-row-header text, .role-column-header text, .role-header text")) {
      const name = String(text.__data__?.datum?.value ?? text.textContent);
      const words = loadWords(name);
      const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
      title.textContent = words ? `${name}: ${words}` : name;
      text.append(title);
    }
  }

  function isNear(chart) {
    const box = placeOf(chart).closest("section").getBoundingClientRect();
    return box.bottom > -400 && box.top < innerHeight + 400;
  }

  // What is in sight first, then the rest one by one, so that the page stays responsive.
  async function redraw() {
    const mine = ++generation;
    outside.clear();
    const waiting = [...data.charts].sort((one, other) => isNear(other) - isNear(one));
    for (const chart of waiting) {
      if (mine !== generation) return;
      await draw(chart);
      await new Promise((resume) => setTimeout(resume));
    }
  }

  // Drawing takes no timers, so that all of it is done before the browser prints.
  function print(start) {
    if (start === printing) return;
    printing = start;
    generation += 1;
    outside.clear();
    if (start) for (const chart of data.charts) draw(chart);
    else redraw();
  }

  let resizing = 0;
  new ResizeObserver(() => {
    clearTimeout(resizing);
    resizing = setTimeout(() => {
      const changed = data.charts.some((chart) => {
        const place = placeOf(chart);
        return place.dataset.width && Math.abs(Number(place.dataset.width) - widthOf(place)) > NEAR;
      });
      if (changed && !printing) redraw();
    }, 120);
  }).observe(document.querySelector("main"));

  return { redraw, print };
};
