"use strict";
// The rule of the recommendation: evaluate/report/decide/rules in JavaScript, with the same names
// and the same order of operations. tests/evaluate/report/rules compares both on random settings.
window.quantlineRules = (function () {
  const SMALLEST = 1e-9;
  const CLOSE = 0.02;
  const TRIAL = ["rate", "allowed", "failed", "whole", "slowest"];
  const ENTRY = ["candidate", "time", "median", "ttft_ms", "tpot_ms", "memory_gib", "tokens_s", "joules", "inputs_per_output"];

  function named(names, values) {
    return Object.fromEntries(names.map((name, place) => [name, values[place]]));
  }

  // The facts as the rule reads them: the page holds entries and trials as lists, to be small.
  function read(packed) {
    const workloads = packed.workloads.map((workload) => {
      const entries = workload.entries.map((values) => named(ENTRY, values));
      return { ...workload, entries, places: new Map(entries.map((entry, place) => [entry.candidate, place])) };
    });
    const searches = packed.searches.map((search) => ({
      ...search,
      rates: search.rates.map((found) => ({ ...found, trials: found.trials.map((values) => named(TRIAL, values)) })),
    }));
    return { ...packed, workloads, searches };
  }

  function entryOf(workload, candidate) {
    return workload.places.has(candidate) ? workload.entries[workload.places.get(candidate)] : null;
  }

  function factorOf(workload, one, other) {
    if (one === other) return 1;
    const [low, high] = [workload.places.get(one), workload.places.get(other)].sort((a, b) => a - b);
    const before = low * workload.entries.length - (low * (low + 1)) / 2;
    return workload.factors[before + high - low - 1];
  }

  function qualityMisses(candidate, limits) {
    const least = limits.min_recovery;
    if (!candidate.judged) return least !== null ? [miss("unjudged")] : [];
    if (candidate.verdict === "broken") return [miss("broken")];
    if (least === null) return candidate.verdict === "loss" ? [miss("loss")] : [];
    if (candidate.recovery === null) return [miss("unjudged")];
    return candidate.recovery < least ? [miss("recovery", "", candidate.recovery, least)] : [];
  }

  function miss(rule, workload = "", value = null, limit = null) {
    return { rule, workload, value, limit };
  }

  function misses(workload, entry, candidate, limits) {
    const found = [];
    for (const [rule, value, limit] of [
      ["ttft", entry.ttft_ms, limits.ttft_ms],
      ["tpot", entry.tpot_ms, workload.tpot ? limits.tpot_ms : null],
      ["memory", entry.memory_gib, limits.max_memory_gib],
    ]) {
      if (limit === null) continue;
      if (value === null) found.push(miss(`${rule} unknown`, workload.name));
      else if (value > limit) found.push(miss(rule, workload.name, value, limit));
    }
    return found.concat(qualityMisses(candidate, limits));
  }

  function distinct(found) {
    return [...new Map(found.map((one) => [JSON.stringify(one), one])).values()];
  }

  function mayBeHeadline(candidate, someJudged, allowUnjudged) {
    return candidate.judged || allowUnjudged || (!someJudged && !candidate.pruned);
  }

  function standingsOf(facts, workloads, limits) {
    const standings = [];
    const incomplete = [];
    facts.candidates.forEach((candidate, place) => {
      const entries = workloads.map((workload) => entryOf(workload, place));
      if (workloads.length === 0 || entries.includes(null)) {
        incomplete.push(place);
        return;
      }
      const found = workloads.flatMap((workload, number) => misses(workload, entries[number], candidate, limits));
      standings.push({ candidate: place, relative_time: Infinity, misses: distinct(found), unjudged: false });
    });
    return { standings, incomplete };
  }

  // The time over the mix as a share of the reference's time.
  function timeOf(workloads, shares, candidate, reference) {
    let total = 0;
    for (const workload of workloads) {
      const own = entryOf(workload, candidate).median;
      total += (shares[workload.name] * own) / (entryOf(workload, reference).median || SMALLEST);
    }
    return total;
  }

  // The speed-up over a mix, with its interval.
  function mixRatio(workloads, shares, one, other, reference) {
    const timesOf = (candidate) => workloads.map((workload) => {
      const [own, others] = [entryOf(workload, candidate).time, entryOf(workload, reference).time];
      return own === null || others === null ? null : (shares[workload.name] * own) / others;
    });
    const [times, othersTimes] = [timesOf(one), timesOf(other)];
    if (times.includes(null) || othersTimes.includes(null)) return null;
    const sum = (values) => values.reduce((total, value) => total + value, 0);
    const [total, othersTotal] = [sum(times), sum(othersTimes)];
    let width = 0;
    for (const [place, workload] of workloads.entries()) {
      const [part, othersPart] = [times[place] / total, othersTimes[place] / othersTotal];
      for (const [first, second, weight] of [
        [one, other, Math.min(part, othersPart)],
        [one, reference, Math.max(part - othersPart, 0)],
        [other, reference, Math.max(othersPart - part, 0)],
      ]) {
        const factor = weight ? factorOf(workload, first, second) : 1;
        if (factor === null) return null;
        width += weight * (factor - 1);
      }
    }
    const ratio = othersTotal / total;
    return { ratio, low: ratio / (1 + width), high: ratio * (1 + width) };
  }

  // The speed-up under a workload alone.
  function workloadRatio(workload, one, other) {
    return mixRatio([workload], { [workload.name]: 1 }, one, other, other);
  }

  function differs(ratio) {
    return ratio !== null && !(ratio.low <= 1 && 1 <= ratio.high);
  }

  function isBetterSetup(facts, workloads, one, other) {
    if (one === other || facts.candidates[one].weights !== facts.candidates[other].weights) return false;
    const ratios = workloads.map((workload) => workloadRatio(workload, one, other));
    const different = ratios.filter(differs).map((ratio) => ratio.ratio > 1);
    return different.length > 0 && different.every(Boolean);
  }

  // Smaller is better, field by field: the original, the higher recovery, the smaller memory.
  function preference(candidate, memory) {
    const steps = -Math.floor(Math.min(candidate.recovery || 0, 1) / CLOSE + 0.5);
    return [candidate.original ? 0 : 1, steps, memory === null ? Infinity : memory, candidate.name];
  }

  function inOrder(one, other) {
    for (let place = 0; place < one.length; place++) {
      if (one[place] < other[place]) return -1;
      if (one[place] > other[place]) return 1;
    }
    return 0;
  }

  function bestOf(facts, workloads, tied) {
    const good = tied.filter((one) => !tied.some((other) => isBetterSetup(facts, workloads, other, one)));
    const keyed = (good.length ? good : tied).map((place) =>
      ({ place, key: preference(facts.candidates[place], entryOf(workloads[0], place).memory_gib) }));
    return keyed.sort((one, other) => inOrder(one.key, other.key))[0].place;
  }

  // What to serve for a mix: shares by the workload's name, limits by the target's name.
  function pick(facts, shares, limits) {
    const workloads = facts.workloads.filter((workload) => (shares[workload.name] ?? 0) > 0);
    const { standings, incomplete } = standingsOf(facts, workloads, limits);
    const result = { candidate: null, problem: "", reference: null, ratio: null, tied: [], second: null, standings, incomplete };
    const originals = standings.filter((one) => facts.candidates[one.candidate].original);
    const served = standings.filter((one) => one.misses.length === 0);
    const times = originals.map((one) => timeOf(workloads, shares, one.candidate, originals[0].candidate));
    const reference = originals[times.indexOf(Math.min(...times))]?.candidate ?? null;
    result.reference = reference;
    if (reference !== null) {
      for (const one of standings) one.relative_time = timeOf(workloads, shares, one.candidate, reference);
      standings.sort((one, other) => one.relative_time - other.relative_time);
    }
    if (served.length === 0 || originals.length === 0) {
      result.problem = served.length ? "original" : standings.length ? "targets" : "unranked";
      return result;
    }
    const someJudged = standings.some((one) => facts.candidates[one.candidate].judged && !facts.candidates[one.candidate].original);
    for (const one of served) one.unjudged = !mayBeHeadline(facts.candidates[one.candidate], someJudged, limits.allow_unjudged);
    const pool = standings.filter((one) => one.misses.length === 0 && !one.unjudged).map((one) => one.candidate);
    if (pool.length === 0) {
      result.problem = "unjudged";
      return result;
    }
    const tied = pool.filter((candidate, place) =>
      !pool.slice(0, place).some((faster) => differs(mixRatio(workloads, shares, candidate, faster, reference))));
    const best = bestOf(facts, workloads, tied);
    result.candidate = best;
    if (best !== reference) result.ratio = mixRatio(workloads, shares, best, reference, reference);
    result.tied = tied.filter((candidate) => candidate !== best);
    result.second = pool.find((candidate) => !tied.includes(candidate)) ?? null;
    return result;
  }

  // TTFT and TPOT in milliseconds: the limits, and the search's own where there is none.
  function targetsOf(search, limits) {
    return [limits.ttft_ms ?? search.ttft_ms, limits.tpot_ms ?? search.tpot_ms];
  }

  function hasTrials(search) {
    return search.rates.length > 0 && search.rates.every((found) => found.trials.length > 0);
  }

  function isJudgedAgain(search, limits) {
    const [ttft, tpot] = targetsOf(search, limits);
    return hasTrials(search) && (ttft !== search.ttft_ms || tpot !== search.tpot_ms);
  }

  function late(trial, ttft, tpot) {
    return trial.failed + trial.slowest.filter((times) => times[0] > ttft || times[1] > tpot).length;
  }

  // The highest rate that meets the targets below the lowest that misses them, as in a search.
  function ratesBetween(trials, ttft, tpot) {
    const isLate = (trial) => late(trial, ttft, tpot) > trial.allowed;
    const high = Math.min(...trials.filter(isLate).map((trial) => trial.rate)); // Infinity for none
    const met = trials.filter((trial) => trial.whole && !isLate(trial) && trial.rate < high);
    return [Math.max(0, ...met.map((trial) => trial.rate)), high === Infinity ? null : high];
  }

  // The search as its trials are under these targets, the highest rate first.
  function judgedSearch(search, limits) {
    if (!isJudgedAgain(search, limits)) return search;
    const [ttft, tpot] = targetsOf(search, limits);
    const rates = search.rates.map((found) => {
      const [low, high] = ratesBetween(found.trials, ttft, tpot);
      return { ...found, rate: low, low, high, joules_input: null, joules_output: null };
    });
    for (const found of rates) {
      const lower = rates.filter((other) => other.high !== null && found.rate > other.high * search.noise);
      found.above = lower.map((other) => other.candidate);
    }
    return { ...search, rates: rates.sort((one, other) => other.rate - one.rate) };
  }

  // The candidate with the highest capacity.
  function pickRate(facts, search, limits) {
    const result = { candidate: null, problem: "", reference: null, misses: {}, no_rate: [], fitting: [], tied: [], second: null };
    const fitting = [];
    for (const found of search.rates) {
      const missed = qualityMisses(facts.candidates[found.candidate], limits);
      if (missed.length) result.misses[found.candidate] = missed;
      if (!found.rate) result.no_rate.push(found.candidate);
      if (found.rate && !missed.length) fitting.push(found);
    }
    result.fitting = fitting.map((found) => found.candidate);
    const someJudged = search.rates.some(({ candidate }) => facts.candidates[candidate].judged && !facts.candidates[candidate].original);
    const pool = fitting.filter((found) => mayBeHeadline(facts.candidates[found.candidate], someJudged, limits.allow_unjudged));
    if (pool.length === 0) {
      result.problem = fitting.length ? "unjudged" : "targets";
      return result;
    }
    const original = pool.find((found) => facts.candidates[found.candidate].original);
    const higher = original && pool.find((found) => found.above.includes(original.candidate));
    const best = original ? higher ?? original : pool[0];
    const isTied = (found) => !found.above.includes(best.candidate) && !best.above.includes(found.candidate);
    const others = pool.filter((found) => found !== best);
    result.reference = original?.candidate ?? null;
    result.candidate = best.candidate;
    result.tied = others.filter(isTied).map((found) => found.candidate);
    result.second = others.find((found) => !isTied(found))?.candidate ?? null;
    return result;
  }

  // The prices that count: where no energy was measured at all, its price does not.
  function counted(facts, prices) {
    return facts.energy ? prices : { ...prices, per_kwh: null };
  }

  // Money and joules for a million tokens. Where energy has a price and is not known, neither is the money.
  function tokenCost(gpuSeconds, joules, prices) {
    let money = null;
    if (prices.per_hour) money = (prices.per_hour / 3600) * gpuSeconds;
    if (prices.per_kwh) money = joules === null ? null : (money ?? 0) + (prices.per_kwh / 3.6e6) * joules;
    return { money: money === null ? null : money * 1e6, joules: joules === null ? null : joules * 1e6 };
  }

  // Over a mix, for a million of its "input_tokens" or "output_tokens".
  function mixCost(facts, shares, candidate, reference, prices, kind) {
    let [tokens, seconds, joules, hasEnergy] = [0, 0, 0, true];
    for (const workload of facts.workloads) {
      if (!((shares[workload.name] ?? 0) > 0)) continue;
      const own = entryOf(workload, candidate);
      const other = entryOf(workload, reference);
      const each = kind === "input_tokens" ? other?.inputs_per_output : 1;
      if (!own?.tokens_s || !other?.tokens_s || !each) return { money: null, joules: null };
      const made = shares[workload.name] * other.tokens_s;
      tokens += made * each;
      seconds += made / own.tokens_s;
      hasEnergy = hasEnergy && own.joules !== null;
      joules += made * (own.joules ?? 0);
    }
    if (!tokens) return { money: null, joules: null };
    return tokenCost(seconds / tokens, hasEnergy ? joules / tokens : null, prices);
  }

  // At a capacity, for a million of the requests' "input_tokens" or "output_tokens".
  function rateCost(found, prices, kind) {
    const tokens = found.rate * found[kind];
    if (!tokens) return { money: null, joules: null };
    return tokenCost(1 / tokens, kind === "input_tokens" ? found.joules_input : found.joules_output, prices);
  }

  return { read, pick, pickRate, judgedSearch, isJudgedAgain, targetsOf, hasTrials, mixRatio, mixCost, rateCost, counted, entryOf, differs };
})();
