// The list: filters, search, scenes; only what is on screen is made into elements.
"use strict";

const episodeList = {
  matches: [], // numbers of the episodes that are left, in order
  flags: new Set(),
  row: null,
  onopen: () => {},
  onchange: () => {},

  start() {
    const { episodes, flags } = vlaNav.data;
    const scenes = [...new Set(episodes.map((line) => line.scene))].sort();
    byId("scene").append(make("option", { value: "" }, `all ${scenes.length} scenes`),
      ...scenes.map((name) => make("option", { value: name }, short(name))));
    byId("scene").hidden = scenes.length < 2;
    const rows = episodeList.rows();
    byId("row").append(...rows.map((name) => make("option", { value: name }, name)));
    byId("row-label").hidden = rows.length < 2;
    episodeList.row = rows[0] ?? null;
    for (const name of ["succeeded", ...Object.keys(flags)]) {
      const title = flags[name] ?? "STOP near a goal";
      byId("filters").append(make("button", { "data-flag": name, title, "aria-pressed": "false", onclick: () => episodeList.toggle(name) }, name));
    }
    byId("search").addEventListener("input", () => episodeList.update());
    byId("scene").addEventListener("change", () => episodeList.update());
    byId("row").addEventListener("change", (event) => episodeList.choose(event.target.value));
    byId("list").addEventListener("scroll", () => episodeList.more());
  },

  rows() { return [...new Set(vlaNav.data.episodes.flatMap((line) => Object.keys(line.rows)))]; },
  of(line) { return line.rows[episodeList.row] ?? null; },

  has(line, flag) {
    const walk = episodeList.of(line);
    if (!walk) return false;
    if (flag === "succeeded") return walk.steps > 0 && !walk.flags.includes("failed") && !walk.flags.includes("flagged");
    return walk.flags.includes(flag);
  },

  toggle(flag) {
    if (!episodeList.flags.delete(flag)) episodeList.flags.add(flag);
    episodeList.update();
  },

  choose(row) {
    episodeList.row = row;
    byId("row").value = row;
    episodeList.update();
  },

  set({ flags, search, scene, row }) {
    episodeList.flags = new Set(flags);
    byId("search").value = search;
    byId("scene").value = scene;
    if (episodeList.rows().includes(row)) {
      episodeList.row = row;
      byId("row").value = row;
    }
    episodeList.update({ isQuiet: true });
  },

  update({ isQuiet = false } = {}) {
    const { episodes } = vlaNav.data;
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const scene = byId("scene").value;
    const found = episodes.map((line, number) => number).filter((number) => {
      const line = episodes[number];
      const text = `${line.instruction} ${line.key} ${line.scene}`.toLowerCase();
      return (!scene || line.scene === scene) && words.every((word) => text.includes(word));
    });
    for (const button of byId("filters").children) {
      const flag = button.dataset.flag;
      const count = found.filter((number) => episodeList.has(episodes[number], flag)).length;
      const isOn = episodeList.flags.has(flag);
      button.setAttribute("aria-pressed", String(isOn));
      button.replaceChildren(flag, make("b", {}, String(count)));
      button.hidden = !isOn && !episodes.some((line) => episodeList.has(line, flag));
    }
    episodeList.matches = found.filter((number) => [...episodeList.flags].every((flag) => episodeList.has(episodes[number], flag)));
    const all = vlaNav.data.is_cut ? `the first ${episodes.length}` : String(episodes.length);
    byId("count").textContent = `${episodeList.matches.length} of ${all} episodes`;
    byId("list").replaceChildren();
    byId("list").scrollTop = 0;
    episodeList.more();
    if (!isQuiet) episodeList.onchange();
  },

  more() { // append what the next two screens show
    const list = byId("list");
    while (list.childElementCount < episodeList.matches.length && list.scrollHeight < list.scrollTop + 3 * list.clientHeight + 1) {
      const from = list.childElementCount;
      list.append(...episodeList.matches.slice(from, from + 40).map(episodeList.item));
      if (!list.clientHeight) break;
    }
  },

  item(number) {
    const line = vlaNav.data.episodes[number];
    const walk = episodeList.of(line);
    const marks = (walk?.flags ?? []).map((flag) => make("span", { class: `flag ${flag.replace(" ", "-")}` }, flag));
    if (episodeList.has(line, "succeeded") && vlaNav.data.kind === "run") marks.push(make("span", { class: "flag good" }, "success"));
    return make("li", { "data-number": number, class: number === episodeList.current ? "current" : null, onclick: () => episodeList.onopen(number) },
      make("p", { class: "quiet" }, `${line.id} · ${short(line.scene)}${walk ? ` · ${walk.steps} steps` : ""}`, ...marks),
      make("p", { class: "text" }, line.instruction || "no instruction"));
  },

  mark(number) {
    episodeList.current = number;
    const list = byId("list");
    const at = episodeList.matches.indexOf(number);
    while (at >= list.childElementCount && list.childElementCount < episodeList.matches.length) {
      const from = list.childElementCount;
      list.append(...episodeList.matches.slice(from, from + 40).map(episodeList.item));
    }
    for (const item of list.children) {
      const isCurrent = Number(item.dataset.number) === number;
      item.classList.toggle("current", isCurrent);
      if (isCurrent) item.scrollIntoView({ block: "nearest" });
    }
  },

  next(number, direction) {
    const at = episodeList.matches.indexOf(number);
    return episodeList.matches[at < 0 ? 0 : at + direction] ?? null;
  },
};

function short(scene) { return scene.split("/").pop().replace(/\.(glb|ply|obj|gltf|basis)$/g, "") || "no scene"; }
