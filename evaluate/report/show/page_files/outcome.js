"use strict";
// What follows from the sliders' settings, as elements of the page.
window.quantlineOutcome = function (data, make, state) {
  const rules = window.quantlineRules;

  function figure(value, digits = 3) {
    if (value === null || value === undefined) return "-";
    return Number(value.toPrecision(digits)).toLocaleString("en", { maximumSignificantDigits: digits });
  }

  function percent(value, digits) {
    return `${(value * 100).toFixed(digits)}%`;
  }

  function missText(miss) {
    const formats = {
      recovery: (value) => percent(value, 2),
      memory: (value, isLimit) => (isLimit ? short(value) : value.toFixed(1)),
    };
    const short = (value) => String(Number(value.toPrecision(6)));
    const format = formats[miss.rule] ?? ((value, isLimit) => (isLimit ? short(value) : figure(value)));
    return data.missTexts[miss.rule]
      .replace("{workload}", () => miss.workload)
      .replace("{value}", () => (miss.value === null ? "" : format(miss.value, false)))
      .replace("{limit}", () => (miss.limit === null ? "" : format(miss.limit, true)));
  }

  function quoted(word) {
    return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
  }

  function commandBox(words) {
    return make("div", { class: "command" }, make("pre", {}, words),
      make("button", { type: "button", class: "copy", "aria-label": "Copy the command" }, "Copy"));
  }

  function problemText(picked, shares) {
    if (Object.keys(shares).length === 0) return "Every scenario has a weight of 0.";
    if (picked.problem === "targets") return "No candidate meets the targets in every scenario of the mix.";
    if (picked.problem === "original") return "The original was not ranked in every scenario of the mix, so nothing can be compared with it.";
    if (picked.problem === "unjudged") {
      const fastest = picked.standings.find((standing) => standing.misses.length === 0);
      return `Fastest, accuracy not judged: ${state.facts.candidates[fastest.candidate].name}.`;
    }
    return "No candidate can be ranked in every scenario of the mix.";
  }

  // Why the original is served, as `original_text` of recommend.py says it.
  function originalText(picked) {
    const { ttft_ms, tpot_ms, min_recovery, max_memory_gib } = state.settings.limits;
    const hasTargets = [ttft_ms, tpot_ms, min_recovery, max_memory_gib].some((limit) => limit !== null);
    const someRefused = picked.standings.some((standing) => standing.misses.length || standing.unjudged);
    const leftOut = picked.incomplete.map((place) => state.facts.candidates[place].name);
    const more = leftOut.length - 3;
    const which = hasTargets ? " that meets the targets" : someRefused ? " that may be served" : "";
    const faster = picked.tied.length ? " is significantly faster" : `${which} is faster`;
    return `No ${leftOut.length ? "ranked " : ""}candidate${faster}${leftOut.length ? `; left out: ${leftOut.slice(0, 3).join(", ")}${more > 0 ? ` and ${more} more` : ""}` : ""}.`;
  }

  function speedText(picked) {
    const candidate = state.facts.candidates[picked.candidate];
    if (candidate.original) return originalText(picked);
    const ratio = picked.ratio;
    if (ratio === null) return "";
    const between = `${ratio.low.toFixed(2)} to ${ratio.high.toFixed(2)}`;
    if (!rules.differs(ratio)) return `As fast as the original, no significant difference (${between} times).`;
    return `${ratio.ratio.toFixed(2)} times as fast as the original over the mix (${between}).`;
  }

  function headline(picked, shares) {
    const { candidates } = state.facts;
    const served = picked.candidate === null ? null : candidates[picked.candidate];
    const reported = data.answers[state.setup];
    const same = reported === (served?.name ?? null);
    const words = served ? (served.judged ? "Serve " : "Fastest, accuracy not judged: ") : "No recommendation";
    return [
      make("p", { class: "pick" }, words, served ? make("strong", {}, served.name) : null),
      make("p", {}, served ? speedText(picked) : problemText(picked, shares)),
      make("p", { class: same ? "same" : "other" }, same ? "The same as the report's answer." : `The report's own settings give: ${reported ?? "no recommendation"}.`),
    ];
  }

  function noteOf(standing, picked) {
    if (standing.candidate === picked.candidate) return "served";
    if (standing.misses.length) return [...new Set(standing.misses.map(missText))].join("; ");
    if (standing.unjudged) return "its accuracy was not judged";
    if (picked.tied.includes(standing.candidate)) return "no significant difference";
    return standing.candidate === picked.second ? "next" : "";
  }

  // A name may break after its parts, never inside one.
  function breakable(name) {
    return name.split(/(?<=_|-)/).flatMap((part) => [part, make("wbr")]);
  }

  function bar(ratio, most, words = ratio?.ratio.toFixed(2)) {
    if (ratio === null) return make("td", { class: "speed" }, "-");
    const part = (value) => `${(100 * Math.min(value / most, 1)).toFixed(1)}%`;
    const drawn = make("span", { class: "bar", "aria-hidden": "true" });
    drawn.style.setProperty("--value", part(ratio.ratio));
    drawn.style.setProperty("--low", part(ratio.low));
    drawn.style.setProperty("--high", part(ratio.high));
    return make("td", { class: "speed" }, words, drawn);
  }

  function pricesOf(facts, settings) {
    return rules.counted(facts, { per_hour: settings.prices.price_per_hour, per_kwh: settings.prices.energy_price_per_kwh });
  }

  // That a price is not counted.
  function unpriced() {
    const { facts, settings } = state;
    return settings.prices.energy_price_per_kwh && !facts.energy
      ? make("p", { class: "label unpriced" }, "No energy was measured here: its price is not counted.") : null;
  }

  function table(picked, shares) {
    const { facts, settings, own } = state;
    const used = facts.workloads.filter((workload) => shares[workload.name] > 0);
    const prices = pricesOf(facts, settings);
    const reference = picked.reference ?? facts.candidates.findIndex((candidate) => candidate.original);
    const canCompare = picked.standings.some((standing) => standing.candidate === reference);
    const lines = picked.standings.map((standing) => ({
      standing,
      ratio: canCompare ? rules.mixRatio(used, shares, standing.candidate, reference, reference) : null,
      costs: costsOf((kind) => rules.mixCost(facts, shares, standing.candidate, reference, prices, kind)),
    }));
    if (lines.length === 0) return null;
    const most = Math.max(1, ...lines.map((line) => line.ratio?.ratio ?? 0)) * 1.05;
    const known = knownCosts(lines, own.currency);
    const hasQuality = lines.some(({ standing }) => facts.candidates[standing.candidate].judged && !facts.candidates[standing.candidate].original);
    const head = ["checkpoint", "times as fast", ...(hasQuality ? ["quality left"] : []), ...known.map(({ title }) => title)];
    const body = lines.map(({ standing, ratio, costs }) => {
      const candidate = facts.candidates[standing.candidate];
      const note = noteOf(standing, picked);
      const status = standing.candidate === picked.candidate ? "picked" : standing.misses.length || standing.unjudged ? "refused" : "";
      return make("tr", { class: status },
        make("th", { scope: "row" }, ...breakable(candidate.name), note ? make("small", {}, note) : null),
        bar(ratio, most),
        hasQuality ? make("td", {}, candidate.recovery === null ? "-" : percent(candidate.recovery, 1)) : null,
        ...known.map(({ place }) => make("td", {}, figure(costs[place]))));
    });
    return framed("All checkpoints under these settings", head, body);
  }

  // Money in and out, then kilojoules in and out.
  function costsOf(costOfKind) {
    const both = ["input_tokens", "output_tokens"].map((kind) => costOfKind(kind));
    return [...both.map((cost) => cost.money), ...both.map(({ joules }) => (joules === null ? null : joules / 1000))];
  }

  // The titles and places of the costs that any line has.
  function knownCosts(lines, currency) {
    return [currency, "kJ"].flatMap((unit) => ["in", "out"].map((way) => `${unit} per M tokens ${way}`))
      .map((title, place) => ({ title, place }))
      .filter(({ place }) => lines.some(({ costs }) => costs[place] !== null));
  }

  function heldText(found) {
    if (!found.rate) return "-";
    return found.high === null ? `at least ${figure(found.rate)}` : `${figure(found.low)} to ${figure(found.high)}`;
  }

  // The targets of a capacity search, as text.
  function targetsText(search, isAgain) {
    if (!isAgain) return `within the targets that it was searched with (${search.settings})`;
    const [ttft, tpot] = rules.targetsOf(search, state.settings.limits).map((limit) => Number(limit.toPrecision(6)));
    return `with its trials judged again at TTFT ${ttft} ms and TPOT ${tpot} ms (searched with ${search.settings})`;
  }

  // A capacity search: what holds the most, and all candidates.
  function searched(ownSearch) {
    const { facts, settings, own } = state;
    const isAgain = rules.isJudgedAgain(ownSearch, settings.limits);
    const search = rules.judgedSearch(ownSearch, settings.limits);
    const prices = pricesOf(facts, settings);
    const picked = rules.pickRate(facts, search, settings.limits);
    const lines = search.rates.map((found) => ({ found, costs: costsOf((kind) => rules.rateCost(found, prices, kind)) }));
    const best = lines.find(({ found }) => found.candidate === picked.candidate);
    const held = ({ found }) => (isAgain ? `${heldText(found)} requests/s per GPU`
      : `${figure(found.rate)} requests/s per GPU (${figure(found.low)} to ${figure(found.high)})`);
    const words = best ? ` holds ${held(best)}` : "no recommendation";
    const known = knownCosts(lines, own.currency);
    const most = Math.max(...search.rates.map((found) => found.high ?? found.rate), 1e-9);
    const head = ["checkpoint", "requests/s per GPU", ...known.map(({ title }) => title)];
    const body = lines.map(({ found, costs }) => {
      const missed = (picked.misses[found.candidate] ?? []).map(missText);
      if (picked.no_rate.includes(found.candidate)) missed.unshift(isAgain ? "no rate that was tried meets the targets" : "no rate meets the targets");
      const tie = picked.tied.includes(found.candidate) ? (isAgain ? "not known to differ" : "no significant difference") : "";
      const note = found.candidate === picked.candidate ? "served" : missed.join("; ") || tie;
      return make("tr", { class: found.candidate === picked.candidate ? "picked" : missed.length ? "refused" : "" },
        make("th", { scope: "row" }, ...breakable(facts.candidates[found.candidate].name), note ? make("small", {}, note) : null),
        bar({ ratio: found.rate, low: found.low, high: found.high ?? most }, most, isAgain ? heldText(found) : figure(found.rate)),
        ...known.map(({ place }) => make("td", {}, figure(costs[place]))));
    });
    return {
      candidate: picked.candidate,
      parts: [
        make("p", { class: "rate" }, `For ${search.name}, ${targetsText(search, isAgain)}: `,
          best ? make("b", {}, facts.candidates[picked.candidate].name) : null, `${words}.`),
        framed(`All checkpoints in ${search.name}, ${search.settings}`, head, body),
      ],
    };
  }

  function framed(label, head, body) {
    return make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": label },
      make("table", {}, make("thead", {}, make("tr", {}, ...head.map((title) => make("th", { scope: "col" }, title)))), make("tbody", {}, ...body)));
  }

  // What the candidates lack of this mix, and the commands that measure it.
  function missing(picked, shares) {
    const { facts, own } = state;
    const parts = picked.incomplete.map((place) => {
      const gaps = Object.keys(own.gaps[place]).filter((name) => shares[name] > 0);
      if (gaps.length === 0) return null;
      const names = [...new Set(gaps.map((name) => own.scenarios[name]))].join(",");
      const further = new Set(gaps.flatMap((name) => own.gaps[place][name]));
      const options = [...own.evaluate, `scenario=[${names}]`, ...own.measure[place], ...further, own.results];
      return [`${facts.candidates[place].name} in ${gaps.join(", ")}`, [own.program, ...options.map(quoted)].join(" ")];
    }).filter(Boolean);
    const unjudged = facts.candidates.filter((candidate) => !candidate.judged).map((candidate) => candidate.name);
    if (unjudged.length) parts.unshift([`the accuracy of ${unjudged.join(", ")}`, own.accuracy]);
    if (parts.length === 0) return null;
    return make("details", {}, make("summary", {}, `Not measured (${parts.length})`),
      ...parts.flatMap(([what, words]) => [make("p", {}, `${what[0].toUpperCase()}${what.slice(1)}:`), commandBox(words)]));
  }

  return { headline, searched, table, unpriced, missing, commandBox, quoted };
};
