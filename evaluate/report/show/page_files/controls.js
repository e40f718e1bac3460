"use strict";
// The controls of the sliders: a row for each setting, with a number beside it.
window.quantlineControls = function (kept, make, form, state, changed) {
  let controls = 0;

  // A slider with a number beside it. `read` and `write` turn a value into steps and text, and back.
  function row(label, name, slider, box, note) {
    const id = `what-if-${controls++}`;
    slider.id = id;
    box.setAttribute("aria-label", `${label}, as a number`);
    slider.dataset.setting = name;
    box.dataset.setting = name;
    return make("div", { class: "setting" }, make("label", { for: id }, label), slider, box, make("span", { class: "unit" }, note));
  }

  function weightRow(workload) {
    const weight = () => state.settings.weights[workload.name];
    const slider = make("input", { type: "range", min: 0, max: 100, step: 1, value: Math.round(weight()) });
    const box = make("output", { class: "share" });
    slider.addEventListener("input", () => {
      state.settings.weights[workload.name] = Number(slider.value);
      changed();
    });
    slider.setAttribute("aria-label", `Share of ${workload.name}`);
    return row(workload.name, `mix.${workload.name}`, slider, box, "");
  }

  function limitRow(name) {
    const target = kept.TARGETS[name];
    const range = kept.rangeOf(name, state.own);
    if (range === null) return null;
    const scale = name === "min_recovery" ? 100 : 1;
    const slider = make("input", { type: "range", min: 0, max: kept.STEPS, step: 1 });
    // Without a limit, a capacity search keeps its own target.
    const own = state.facts.workloads.length === 0 ? [...new Set(state.facts.searches.map((search) => search[name]))] : [];
    const none = own.length === 1 && own[0] !== undefined ? String(own[0]) : "any";
    const box = make("input", { type: "number", min: 0, step: "any", placeholder: none, inputmode: "decimal" });
    const show = () => {
      const value = state.settings.limits[name];
      slider.value = kept.toSlider(name, value, range);
      slider.setAttribute("aria-valuetext", value === null ? none : `${value * scale} ${target.unit}`);
      if (document.activeElement !== box) box.value = value === null ? "" : Number((value * scale).toPrecision(6));
    };
    const set = (value) => {
      state.settings.limits[name] = value;
      show();
      changed();
    };
    slider.addEventListener("input", () => set(kept.fromSlider(name, Number(slider.value), range)));
    box.addEventListener("input", () => set(kept.number(box.value / scale, 1e-9, target.largest)));
    show();
    return row(target.label, `targets.${name}`, slider, box, target.unit);
  }

  function priceRow(name) {
    const price = kept.PRICES[name];
    const slider = make("input", { type: "range", min: 0, max: price.most, step: price.step });
    const box = make("input", { type: "number", min: 0, step: "any", placeholder: "none", inputmode: "decimal" });
    const show = () => {
      const value = state.settings.prices[name];
      slider.value = value ?? 0;
      if (document.activeElement !== box) box.value = value ?? "";
    };
    const set = (text) => {
      state.settings.prices[name] = kept.number(text, 1e-9, kept.LARGEST_PRICE);
      show();
      changed();
    };
    slider.addEventListener("input", () => set(slider.value));
    box.addEventListener("input", () => set(box.value));
    show();
    return row(price.label, `gpu.${name}`, slider, box, state.own.currency);
  }

  function group(title, ...rows) {
    return make("fieldset", {}, make("legend", {}, title), ...rows);
  }

  function build() {
    const { facts, first, own } = state;
    const usual = facts.workloads.filter((workload) => first.weights[workload.name] > 0);
    const others = facts.workloads.filter((workload) => !(first.weights[workload.name] > 0));
    const isOpen = others.some((workload) => state.settings.weights[workload.name] > 0);
    const more = others.length === 0 ? null : make("details", { open: isOpen },
      make("summary", {}, `More scenarios (${others.length})`), ...others.map(weightRow));
    const allow = make("input", { type: "checkbox", "data-setting": "targets.allow_unjudged" });
    allow.checked = state.settings.limits.allow_unjudged;
    allow.addEventListener("change", () => {
      state.settings.limits.allow_unjudged = allow.checked;
      changed();
    });
    const reset = make("button", { type: "button", class: "reset" }, "Reset");
    reset.addEventListener("click", () => {
      state.settings = kept.withLinked(first, []);
      build();
      changed();
    });
    const share = make("button", { type: "button", class: "copy link" }, "Copy link");
    form.replaceChildren(
      facts.workloads.length ? group("Mix of scenarios", ...usual.map(weightRow), more) : "",
      group("Targets", ...Object.keys(kept.TARGETS).map(limitRow),
        own.facts.candidates.every((candidate) => candidate.judged) ? null
          : make("label", { class: "check" }, allow, " also what was not judged")),
      group("Prices", ...Object.keys(kept.PRICES).map(priceRow)),
      make("div", { class: "buttons" }, reset, share),
    );
  }

  return { build };
};
