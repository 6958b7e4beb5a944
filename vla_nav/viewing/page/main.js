// One state (episode, row, step, filters), kept in the address so that every view has a link:
//   #episode=houses/val_unseen//7&row=policy&step=12&filter=failed,stuck&search=kitchen&scene=...
"use strict";

const state = { number: null, step: 0, content: null, track: null, timer: null, asked: 0 };
const PLAY_MS = 400;

function numberOf(name) { // a key, an id that is unique, or a place in the list
  const { episodes } = vlaNav.data;
  const exact = episodes.findIndex((line) => line.key === name);
  if (exact >= 0) return exact;
  const same = episodes.map((line, at) => (line.id === name ? at : -1)).filter((at) => at >= 0);
  return same.length === 1 ? same[0] : null;
}

function address() {
  const parts = [];
  const add = (key, value) => { if (value) parts.push(`${key}=${encodeURIComponent(value).replace(/%2F/g, "/")}`); };
  if (state.number !== null) {
    add("episode", vlaNav.data.episodes[state.number].key);
    if (episodeList.rows().length > 1) add("row", episodeList.row);
    parts.push(`step=${state.step}`);
  }
  add("filter", [...episodeList.flags].join(","));
  add("search", byId("search").value);
  add("scene", byId("scene").value);
  return `#${parts.join("&")}`;
}

function remember({ isNew = false } = {}) {
  const wanted = address();
  if (location.hash === wanted || (wanted === "#" && !location.hash)) return;
  state.own = wanted;
  if (isNew) location.hash = wanted;
  else location.replace(wanted);
}

function follow() { // the address was changed by hand, by a link or by going back
  if (location.hash === state.own) return;
  state.own = location.hash;
  const wanted = new URLSearchParams(location.hash.slice(1).replace(/\+/g, "%2B"));
  const flags = (wanted.get("filter") ?? "").split(",").filter((flag) => flag === "succeeded" || flag in vlaNav.data.flags);
  episodeList.set({ flags, search: wanted.get("search") ?? "", scene: wanted.get("scene") ?? "", row: wanted.get("row") ?? episodeList.row });
  const name = wanted.get("episode");
  if (name === null) return overview();
  const number = numberOf(name);
  if (number === null) {
    overview();
    return notice(`No episode ${name} on this page.`);
  }
  open(number, Number.parseInt(wanted.get("step") ?? "0", 10) || 0, { isKept: true });
}

async function open(number, step = 0, { isKept = false } = {}) {
  const asked = (state.asked += 1);
  stop();
  notice("");
  try {
    const content = await vlaNav.load(number);
    if (asked !== state.asked) return;
    Object.assign(state, { number, content });
    episodeList.mark(number);
    byId("overview").hidden = true;
    byId("episode").hidden = false;
    show(step);
    if (!isKept) remember({ isNew: true });
    byId("main").dataset.ready = String(number);
    const after = episodeList.next(number, 1);
    if (after !== null) vlaNav.load(after).catch(() => {}); // so that the next one is there at once
  } catch (error) {
    notice(error.message);
  }
}

function show(step) {
  const { content } = state;
  const track = content.tracks.find((one) => one.name === episodeList.row) ?? content.tracks[0] ?? null;
  const other = content.tracks.find((one) => one !== track && (one.name === "ground truth" || one.name === "expert")) ?? null;
  state.track = track;
  byId("key").textContent = `${content.key} · scene ${content.scene}${track ? ` · ${track.name}` : ""}`;
  byId("instruction").textContent = content.instruction || "(no instruction)";
  byId("outcome").replaceChildren(...(track ? [...track.words, ...track.notes].map((words) => make("span", { class: "why" }, words)) : [make("span", { class: "why" }, content.remark)]));
  if (track && vlaNav.data.kind === "run" && track.flags.length === 0 && "sr" in track.scores) byId("outcome").append(make("span", { class: "why good" }, `success, ${shown(track.scores.ne_m)} m from the goal`));
  byId("slider").max = String(lastStep());
  frames();
  floorMap.show(content, track, other);
  ribbons.show(content, track, (at) => go(at));
  trainingTree.show(content.tree, track?.name, (at) => go(Math.min(at, lastStep())));
  tables(content);
  go(step, { isQuiet: true });
}

function lastStep() { // one past the actions: where the walk ended
  return state.track ? state.track.actions.length : 0;
}

function frames() {
  const names = [...new Set((state.track?.frames ?? []).flatMap((step) => Object.keys(step)))];
  state.images = names.map((name) => ({ name, image: make("img", { alt: `${name} camera` }), words: make("figcaption", {}) }));
  byId("frames").replaceChildren(...state.images.map(({ name, image, words }) => make("figure", { "data-camera": name }, image, words)));
  byId("views").classList.toggle("blind", !names.length);
}

function go(step, { isQuiet = false } = {}) {
  const { track } = state;
  state.step = Math.max(0, Math.min(step, lastStep()));
  byId("slider").value = String(state.step);
  const isEnd = !track || state.step >= track.actions.length;
  byId("where").textContent = track ? (isEnd ? `end of ${track.actions.length} steps` : `step ${state.step} of ${track.actions.length}`) : "start";
  const seen = track?.frames?.[Math.min(state.step, track.frames.length - 1)] ?? {};
  for (const { name, image, words } of state.images) {
    const file = seen[name];
    const isMissing = !file || file.startsWith("!");
    image.hidden = isMissing;
    if (!isMissing) image.src = file;
    words.textContent = isMissing ? `${name}: ${file ? file.slice(1) : "no frame"}` : isEnd ? `${name}, last decision` : name;
    image.classList.toggle("small", !isMissing && file.endsWith(".png"));
  }
  const next = track?.frames?.[state.step + 1] ?? {};
  for (const file of Object.values(next)) if (!file.startsWith("!")) new Image().src = file;
  decision(isEnd);
  floorMap.step(state.step);
  ribbons.step(isEnd ? -1 : state.step);
  trainingTree.step(state.step);
  if (!isQuiet) remember();
}

function decision(isEnd) {
  const { track, step } = state;
  if (!track) return byId("decision").replaceChildren();
  const spot = track.spots[Math.min(step, track.spots.length - 1)];
  const parts = [];
  if (!isEnd) {
    const done = track.actions[step];
    parts.push(make("p", {}, make("b", {}, vlaNav.data.kind === "run" && track.scores.sr !== undefined ? "predicted " : "executed "), `${glyphs(done)}  ${spoken(done)}`));
    for (const label of track.labels?.[step] ?? []) {
      const isSame = agrees(done, label);
      parts.push(make("p", { class: isSame ? null : "differs" }, make("b", {}, "expert "), `${glyphs(label)}  ${spoken(label)}`, isSame ? "" : "  (differs)"));
    }
  }
  if (spot) {
    const [x, y, z, yaw] = spot;
    const goals = state.content.goals.map((goal) => Math.hypot(goal[0] - x, goal[1] - y, goal[2] - z));
    const far = goals.length ? `, ${Math.min(...goals).toFixed(2)} m to the goal in a straight line` : "";
    parts.push(make("p", { class: "quiet" }, `at (${[x, y, z].map((value) => shown(value)).join(", ")}), heading ${Math.round((yaw * 180) / Math.PI)}°${far}`));
  }
  byId("decision").replaceChildren(...parts);
}

function tables(content) {
  const parts = [];
  const scored = content.tracks.filter((track) => Object.keys(track.scores).length);
  if (scored.length) {
    const names = [...new Set(scored.flatMap((track) => Object.keys(track.scores)))];
    parts.push(make("details", { open: true }, make("summary", {}, "Scores"), make("div", { class: "scroll" },
      table([["", ...names], ...scored.map((track) => [track.name, ...names.map((name) => track.scores[name])])], "numbers"))));
  }
  const metadata = Object.entries(content.metadata);
  if (metadata.length) parts.push(make("details", {}, make("summary", {}, "Metadata"), table(metadata, "wrap")));
  byId("tables").replaceChildren(...parts);
}

function overview() {
  state.asked += 1;
  stop();
  notice("");
  Object.assign(state, { number: null, content: null, track: null });
  delete byId("main").dataset.ready;
  byId("episode").hidden = true;
  byId("overview").hidden = false;
  episodeList.mark(null);
  const { title, facts, report, flags, missing_scenes: missing } = vlaNav.data;
  const parts = [make("h2", {}, title), table(Object.entries(facts), "wrap")];
  if (report.length) {
    const names = Object.keys(report[0]).filter((name) => name !== "name");
    parts.push(make("h2", {}, "Results"), make("div", { class: "scroll" }, table([["row", ...names], ...report.map((row) => [row.name, ...names.map((name) => row[name])])], "numbers")));
  }
  const rows = episodeList.rows();
  const kinds = ["succeeded", ...Object.keys(flags)];
  const before = episodeList.row;
  const counts = rows.map((row) => {
    episodeList.row = row;
    return [row, ...kinds.map((kind) => vlaNav.data.episodes.filter((line) => episodeList.has(line, kind)).length)];
  });
  episodeList.row = before;
  if (counts.length) parts.push(make("h2", {}, "Episodes on this page"), make("div", { class: "scroll" }, table([["", ...kinds], ...counts], "numbers")), table(Object.entries(flags), "wrap quiet"));
  if (missing?.length) parts.push(make("p", { class: "quiet" }, `No maps and no rendered frames where the scene is missing: ${missing[0]}`));
  byId("overview").replaceChildren(...parts);
}

function notice(words) {
  byId("notice").textContent = words;
  byId("notice").hidden = !words;
}

function stop() {
  clearInterval(state.timer);
  state.timer = null;
  byId("play").textContent = "play";
}

function play() {
  if (state.timer) return stop();
  if (state.step >= lastStep()) go(0);
  byId("play").textContent = "pause";
  state.timer = setInterval(() => (state.step < lastStep() ? go(state.step + 1) : stop()), PLAY_MS);
}

function nextEpisode(direction) {
  const number = state.number === null ? episodeList.matches[0] ?? null : episodeList.next(state.number, direction);
  if (number !== null) open(number);
}

function nextRow() {
  const rows = episodeList.rows();
  if (rows.length > 1) episodeList.choose(rows[(rows.indexOf(episodeList.row) + 1) % rows.length]);
}

async function copyLink() {
  remember();
  try {
    await navigator.clipboard.writeText(location.href);
    byId("link").textContent = "copied";
  } catch {
    window.prompt("The link to this step", location.href);
  }
  setTimeout(() => { byId("link").textContent = "link"; }, 1200);
}

const KEYS = {
  ArrowRight: () => go(state.step + 1), ArrowLeft: () => go(state.step - 1),
  Home: () => go(0), End: () => go(lastStep()), " ": play, c: copyLink,
};
const EVERYWHERE = {
  ArrowDown: () => nextEpisode(1), ArrowUp: () => nextEpisode(-1), j: () => nextEpisode(1), k: () => nextEpisode(-1),
  r: nextRow, "/": () => byId("search").focus(), Escape: () => { overview(); remember({ isNew: true }); },
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target instanceof HTMLInputElement && event.target.type === "search") {
    if (event.key === "Escape" || event.key === "Enter") event.target.blur();
    return;
  }
  if (event.target instanceof HTMLSelectElement) return;
  const act = EVERYWHERE[event.key] ?? (state.content ? KEYS[event.key] : null);
  if (!act) return;
  event.preventDefault();
  act();
}

function start() {
  if (!vlaNav.data) return notice("data/index.js is missing or damaged; run vla-nav view again.");
  const { title, is_complete: isComplete, episodes } = vlaNav.data;
  byId("title").textContent = document.title = title;
  byId("written").hidden = isComplete;
  byId("written").textContent = `still being written: ${episodes.length} episodes so far`;
  episodeList.onopen = (number) => open(number);
  episodeList.onchange = () => {
    if (state.content) show(state.step);
    remember();
  };
  episodeList.start();
  for (const [id, act] of [["first", () => go(0)], ["back", () => go(state.step - 1)], ["play", play], ["forward", () => go(state.step + 1)], ["last", () => go(lastStep())], ["link", copyLink]]) byId(id).addEventListener("click", act);
  byId("slider").addEventListener("input", (event) => go(Number(event.target.value)));
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", follow);
  episodeList.update({ isQuiet: true });
  follow();
  if (!location.hash) overview();
}

start();
