// Actions step by step: what was done, what the expert would do from there, and other walks below.
"use strict";

const ribbons = {
  show(content, track, onstep) {
    const rows = [];
    if (track) {
      const isRun = vlaNav.data.kind === "run";
      rows.push(ribbon(isRun ? `${track.name} (predicted)` : "executed", track.actions, { onstep, main: true }));
      const most = Math.max(0, ...(track.labels ?? []).map((labels) => labels.length));
      for (let at = 0; at < most; at += 1) {
        const labels = track.labels.map((step) => step[at] ?? null);
        rows.push(ribbon(most > 1 ? `expert ${at + 1}, from here` : "expert, from here", labels.map((label, step) => label && label.slice(0, Math.max(1, track.actions[step].length))), { onstep, main: true, against: track.actions }));
      }
    }
    for (const other of content.tracks) {
      if (other !== track) rows.push(ribbon(other.name, other.actions, { quiet: true }));
    }
    ribbons.cells = rows.filter((row) => row.main).map((row) => row.cells);
    byId("ribbons").replaceChildren(make("div", { class: "scroll" }, make("table", { class: "ribbons" }, ...rows.map((row) => row.element))));
    ribbons.element = byId("ribbons").firstChild;
  },

  step(number) {
    for (const cells of ribbons.cells) {
      cells.forEach((cell, at) => cell.classList.toggle("now", at === number));
      const cell = cells[number];
      if (cell) {
        const box = ribbons.element;
        const left = cell.offsetLeft - box.clientWidth / 2;
        box.scrollLeft = Math.max(0, left);
      }
    }
  },
};

function ribbon(name, steps, { onstep = null, main = false, against = null, quiet = false }) {
  const cells = steps.map((ids, at) => {
    if (ids === null) return make("td", { class: "cell none", title: `step ${at}: no label` });
    const differs = against && !agrees(against[at], ids);
    const kind = actionOf(ids[ids.length - 1] ?? -1).kind;
    return make("td", { class: `cell ${ids.length ? kind : "none"}${differs ? " differs" : ""}`, title: `step ${at}: ${spoken(ids)}`, onclick: onstep && (() => onstep(at)) }, glyphs(ids));
  });
  return { element: make("tr", { class: quiet ? "other" : null }, make("th", { scope: "row" }, name), ...cells), cells, main };
}
