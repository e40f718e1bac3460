"use strict";
// The settings of the sliders: where they begin, how they are shown, and how a link holds them.
// Their names are those of the command line.
window.quantlineSettings = function (data) {
  const STEPS = 200;
  const TARGETS = {
    ttft_ms: { label: "TTFT, at most", unit: "ms", field: "ttft_ms", largest: 1e9 },
    tpot_ms: { label: "TPOT, at most", unit: "ms", field: "tpot_ms", largest: 1e9 },
    min_recovery: { label: "Quality left, at least", unit: "%", largest: 1 },
    max_memory_gib: { label: "Memory, at most", unit: "GiB", field: "memory_gib", largest: 1e6 },
  };
  // The largest numbers are those that the command line takes.
  const LARGEST_PRICE = 1e6;
  const LARGEST_WEIGHT = 1e9;
  const PRICES = {
    price_per_hour: { label: "One card for an hour", most: 12, step: 0.05 },
    energy_price_per_kwh: { label: "A kWh of energy", most: 1, step: 0.01 },
  };

  // The settings of the report itself.
  function firstOf(own) {
    const weights = Object.create(null); // a scenario may have any name, as constructor
    for (const workload of own.facts.workloads) weights[workload.name] = own.weights[workload.name] ?? 0;
    const prices = { price_per_hour: own.price_per_hour, energy_price_per_kwh: own.energy_price_per_kwh };
    return { weights, limits: { ...own.limits }, prices };
  }

  function sharesOf(settings) {
    const total = Object.values(settings.weights).reduce((sum, weight) => sum + weight, 0);
    const shares = Object.create(null);
    for (const [name, weight] of Object.entries(settings.weights)) if (total > 0 && weight > 0) shares[name] = weight / total;
    return shares;
  }

  function short(value) {
    return String(Number(Number(value).toPrecision(6)));
  }

  // What differs from the first settings, as options of the command line.
  function options(settings, first) {
    const found = [];
    const names = Object.keys(settings.weights);
    if (names.some((name) => settings.weights[name] !== first.weights[name])) {
      for (const name of names) if (settings.weights[name] > 0) found.push([`mix.${name}`, short(settings.weights[name])]);
    }
    for (const [name, value] of Object.entries(settings.limits)) {
      if (value !== first.limits[name]) found.push([`targets.${name}`, value === null ? "null" : typeof value === "boolean" ? String(value) : short(value)]);
    }
    for (const [name, value] of Object.entries(settings.prices)) {
      if (value !== first.prices[name]) found.push([`gpu.${name}`, value === null ? "null" : short(value)]);
    }
    return found;
  }

  // A link ends in #?setup=1&targets.tpot_ms=20.
  function hashOf(setup, settings, first) {
    const found = options(settings, first);
    if (setup !== data.opening) found.unshift(["setup", String(setup)]);
    return found.length ? "#?" + new URLSearchParams(found).toString() : "";
  }

  function linked() {
    if (!location.hash.startsWith("#?")) return null;
    const found = [...new URLSearchParams(location.hash.slice(2))];
    const setup = Number(found.find(([name]) => name === "setup")?.[1] ?? data.opening);
    return { setup: data.setups[setup] ? setup : data.opening, found };
  }

  // The number that a link or a box has; null where there is none that counts.
  function number(text, least, largest) {
    const value = Number(text);
    return String(text).trim() !== "" && value >= least && value <= largest ? value : null;
  }

  // Sliders go from 0 to 100, and a mix may be written as 0.6 and 0.4: as the report's own weights,
  // those of a link are made percents, with as many digits.
  function scale(weights) {
    const total = Object.values(weights).reduce((sum, weight) => sum + weight, 0);
    for (const [name, weight] of Object.entries(weights)) {
      const percent = total > 0 ? (100 * weight) / total : 0;
      weights[name] = Number(percent.toFixed(4)) || percent;
    }
  }

  // The first settings with what a link says. What a link names and the page lacks is left out.
  function withLinked(first, found) {
    const settings = { weights: Object.assign(Object.create(null), first.weights), limits: { ...first.limits }, prices: { ...first.prices } };
    const mix = found.filter(([name]) => name.startsWith("mix.") && name.slice(4) in first.weights);
    if (mix.length) {
      for (const name of Object.keys(settings.weights)) settings.weights[name] = 0;
      for (const [name, text] of mix) settings.weights[name.slice(4)] = number(text, 0, LARGEST_WEIGHT) ?? 0;
      scale(settings.weights);
    }
    for (const [name, text] of found) {
      const [group, key] = [name.split(".")[0], name.slice(name.indexOf(".") + 1)];
      if (group === "targets" && key === "allow_unjudged") settings.limits[key] = text === "true";
      else if (group === "targets" && Object.hasOwn(TARGETS, key)) settings.limits[key] = number(text, 1e-9, TARGETS[key].largest);
      else if (group === "gpu" && Object.hasOwn(PRICES, key)) settings.prices[key] = number(text, 1e-9, LARGEST_PRICE);
    }
    return settings;
  }

  // The target of each capacity search whose trials can be judged again, and the times of their slowest requests.
  function ofSearches(name, own) {
    const pace = { ttft_ms: 0, tpot_ms: 1 }[name];
    if (pace === undefined) return [];
    return own.facts.searches.filter(window.quantlineRules.hasTrials).flatMap((search) => [search[name],
      ...search.rates.flatMap((found) => found.trials.flatMap((trial) => trial[4].map((times) => times[pace])))]);
  }

  // The range of a slider, from what was measured. Times are on a scale of ratios.
  function rangeOf(name, own) {
    if (name === "min_recovery") return { least: 0.8, most: 1, log: false };
    const place = { ttft_ms: 3, tpot_ms: 4, max_memory_gib: 5 }[name];
    const values = own.facts.workloads.flatMap((workload) => workload.entries.map((entry) => entry[place]))
      .concat(ofSearches(name, own)).filter((value) => value > 0);
    if (values.length === 0) return null;
    return { least: Math.min(...values) * 0.8, most: Math.max(...values) * 1.25, log: true };
  }

  // The slider's far end is no limit: the right one for a most, the left one for a least.
  function toSlider(name, value, range) {
    if (value === null) return name === "min_recovery" ? 0 : STEPS;
    const part = range.log ? Math.log(value / range.least) / Math.log(range.most / range.least) : (value - range.least) / (range.most - range.least);
    return Math.round(Math.min(Math.max(part, 0), 1) * (STEPS - 1)) + (name === "min_recovery" ? 1 : 0);
  }

  function fromSlider(name, step, range) {
    if (name === "min_recovery") {
      return step === 0 ? null : Number((range.least + ((step - 1) / (STEPS - 1)) * (range.most - range.least)).toFixed(3));
    }
    if (step === STEPS) return null;
    return Number((range.least * (range.most / range.least) ** (step / (STEPS - 1))).toPrecision(2));
  }

  return { STEPS, TARGETS, PRICES, LARGEST_PRICE, number, firstOf, sharesOf, options, hashOf, linked, withLinked, rangeOf, toSlider, fromSlider };
};
