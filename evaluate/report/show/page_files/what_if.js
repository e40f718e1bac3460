"use strict";
// The sliders and what follows from them.
window.quantlineWhatIf = function (data) {
  const rules = window.quantlineRules;
  const kept = window.quantlineSettings(data);
  const section = document.getElementById("what-if");
  const form = section.querySelector(".settings");
  const outcome = section.querySelector(".outcome");
  const state = { setup: -1, own: null, facts: null, first: null, settings: null };
  const link = kept.linked();
  let pending = link;

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") element.className = value;
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null) element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  }

  const shown = window.quantlineOutcome(data, make, state);
  const controls = window.quantlineControls(kept, make, form, state, changed);

  function reportCommand() {
    const found = kept.options(state.settings, state.first);
    if (found.some(([name]) => !/^[\w.-]+$/.test(name))) return null;
    const names = new Set(found.map(([name]) => name));
    const isReplaced = (option) => names.has(option.split("=")[0]) || (option.startsWith("mix.") && found.some(([name]) => name.startsWith("mix.")));
    const words = [...state.own.options.filter((option) => !isReplaced(option)), ...found.map(([name, value]) => `${name}=${value}`)];
    return make("details", {}, make("summary", {}, "The report with these settings"),
      shown.commandBox([state.own.report, ...words.map(shown.quoted)].join(" ")));
  }

  function changed() {
    const { facts, settings, own } = state;
    const shares = kept.sharesOf(settings);
    for (const box of form.querySelectorAll("output.share")) {
      const share = shares[box.dataset.setting.slice(4)] ?? 0;
      box.textContent = `${Math.round(share * 100)}%`;
    }
    const picked = rules.pick(facts, shares, settings.limits);
    const isOpen = [...outcome.querySelectorAll("details")].map((part) => part.open);
    const found = facts.searches.map(shown.searched);
    // Where nothing but a capacity was searched, that is the answer.
    const served = facts.workloads.length ? picked.candidate : found[0]?.candidate ?? null;
    const serve = served === null ? [] : own.serve[served];
    const parts = [
      ...(facts.workloads.length ? shown.headline(picked, shares) : []),
      facts.workloads.length ? shown.table(picked, shares) : null,
      ...found.flatMap((search) => search.parts),
      shown.unpriced(),
      ...(serve.length ? [make("p", { class: "label" }, "To serve it"), ...serve.map(shown.commandBox)] : []),
      shown.missing(picked, shares),
      reportCommand(),
    ];
    outcome.replaceChildren(...parts.filter(Boolean));
    [...outcome.querySelectorAll("details")].forEach((part, place) => { part.open = isOpen[place] ?? false; });
    outcome.dataset.pick = served === null ? "" : facts.candidates[served].name;
    const hash = kept.hashOf(state.setup, settings, state.first);
    form.querySelector(".link").dataset.text = location.href.split("#")[0] + hash;
    if (hash !== location.hash && (hash || location.hash.startsWith("#?"))) history.replaceState(null, "", hash || location.pathname + location.search);
  }

  function show(setup) {
    if (setup === state.setup) return;
    state.setup = setup;
    state.own = data.whatIf[setup] ?? null;
    section.hidden = state.own === null;
    if (state.own === null) return;
    state.facts = rules.read(state.own.facts);
    state.first = kept.firstOf(state.own);
    state.settings = kept.withLinked(state.first, pending && pending.setup === setup ? pending.found : []);
    pending = null;
    controls.build();
    changed();
  }

  window.addEventListener("hashchange", () => {
    const found = kept.linked();
    if (!found) return;
    if (found.setup !== state.setup) location.reload();
    if (state.own === null) return;
    state.settings = kept.withLinked(state.first, found.found);
    controls.build();
    changed();
  });

  return { show, linkedSetup: link ? link.setup : null };
};
