"use strict";
// Draws the charts as wide as their cards, and again when a card, a filter or the theme changes.
window.quantlineCharts = function (data, recordsOf, loadWords) {
  const LEAST_TILE = 46; // pixels of a grid's column; with more columns than fit, it goes on below
  const LEAST_PANEL = 300;
  const LABELS = 0.4; // of the card's width, at the most
  const LEGEND_SYMBOL = 34;
  const LABEL_FONT = 12;
  const NEAR = 3; // pixels between a chart's width and its card's
  const PRINT_WIDTH = 690; // of a page of A4 or Letter, in CSS pixels
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
    const words = { labelColor: ink, titleColor: ink, labelFontSize: LABEL_FONT, titleFontSize: LABEL_FONT, titleFontWeight: "normal" };
    return {
      background: "transparent",
      font: "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif",
      padding: 2,
      axis: { ...words, labelFontSize: width < 500 ? LABEL_FONT - 1 : LABEL_FONT, gridColor: line, domainColor: soft, tickColor: soft },
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

  function textWidth(words) {
    pen.font = `${LABEL_FONT}px ${getComputedStyle(document.body).fontFamily}`;
    return pen.measureText(words).width;
  }

  // A name that is too long for its place takes two lines: it ends the first where its parts end.
  function lines(name, limit) {
    if (textWidth(name) <= limit) return [name];
    const ends = [...name.matchAll(/_|-|(?= \()|, | /g)].map((end) => end.index + end[0].length);
    const fitting = ends.filter((end) => end > 0 && textWidth(name.slice(0, end)) <= limit);
    if (fitting.length === 0) return [name];
    const options = fitting.filter((end) => name.slice(end).startsWith(" ("));
    const end = options.length ? options[0] : fitting[fitting.length - 1];
    return [name.slice(0, end).trim(), name.slice(end).trim()];
  }

  function inLines(records, limit) {
    const field = ["profile", "block", "candidate"].find((name) => records[0][name] !== undefined);
    const names = [...new Set(records.map((record) => String(record[field])))];
    const split = names.map((name) => lines(name, limit));
    if (split.every((part) => part.length === 1)) return {};
    const place = `indexof(${JSON.stringify(names)}, datum.label)`;
    const two = JSON.stringify(split.map((part) => part.length > 1));
    return {
      labelExpr: `(${JSON.stringify(split)})[${place}] || datum.label`,
      labelLineHeight: LABEL_FONT - 1,
      labelBaseline: { condition: { test: `(${two})[${place}]`, value: "bottom" }, value: "middle" },
    };
  }

  // The width of the longest name that a legend may hold.
  function longest(records) {
    const fields = records[0].short === undefined ? ["candidate", "kernel", "engine", "kind", "advice"] : ["short"];
    const names = records.flatMap((record) => fields.map((field) => record[field]));
    return Math.max(...[...new Set(names)].map((name) => textWidth(name ?? "")));
  }

  // How many panels stand side by side; of a grid, one below the other.
  function across(chart, records, width) {
    const spec = chart.spec;
    if (spec.params) {
      const tiles = distinct(records, "scenario");
      const names = outside.get(chart.name + "/") ?? width * LABELS;
      const fit = Math.max(1, Math.floor((width - names) / LEAST_TILE));
      return Math.ceil(tiles / fit);
    }
    if (!spec.columns) return 1;
    const most = spec.concat ? spec.concat.length : distinct(records, spec.facet.field);
    return Math.max(1, Math.min(spec.columns, most, Math.floor(width / LEAST_PANEL)));
  }

  // The chart's spec with its sizes set: `inner` pixels for all panels side by side.
  function sized(chart, records, width, count, inner) {
    const names = new Set(records.map((record) => record.candidate));
    const shown = data.known.candidate.filter((name) => names.has(name));
    // A legend begins where the panels do, and the names of layers leave less room than others.
    const room = records[0].short === undefined ? width : width * (1 - LABELS);
    const legendColumns = Math.max(1, Math.floor(room / (LEGEND_SYMBOL + longest(records))));
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
        if (!node.labelAngle) Object.assign(found, inLines(records, found.labelLimit));
      }
      return found;
    }
    const spec = walk(chart.spec);
    const columns = isGrid ? distinct(records, "scenario") : 0;
    if (isGrid) spec.params = spec.params.map((one) => ({ ...one, value: one.name === "gridPanels" ? count : columns }));
    else if (spec.columns) spec.columns = count;
    spec.datasets = { [chart.data]: records };
    return spec;
  }

  async function embed(place, spec, width) {
    await window.quantlineLibrary;
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

  // A chart that the setup has nothing for is gone; one that the filters empty says so.
  function show(chart) {
    const place = placeOf(chart);
    const section = place.closest("section");
    const { records, any } = recordsOf(chart);
    section.hidden = !any;
    section.querySelector(".empty").hidden = records.length > 0;
    place.parentElement.hidden = records.length === 0;
  }

  // One chart that cannot be drawn takes nothing from the others.
  async function draw(chart) {
    try {
      await drawSized(chart);
    } catch (error) {
      console.error(error);
      placeOf(chart).textContent = `This chart could not be drawn (${error.message}). The tables hold its figures.`;
    }
  }

  async function drawSized(chart) {
    const mine = generation;
    const place = placeOf(chart);
    const { records } = recordsOf(chart);
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
    data.charts.forEach(show);
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
