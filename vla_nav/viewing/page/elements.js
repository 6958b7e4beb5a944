// Elements are made, never parsed: text of the data only ever becomes text nodes and attributes.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function draw(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const ACTIONS = [
  { name: "STOP", glyph: "■", kind: "stop" },
  { name: "MOVE_FORWARD", glyph: "▲", kind: "forward" },
  { name: "TURN_LEFT", glyph: "↶", kind: "left" },
  { name: "TURN_RIGHT", glyph: "↷", kind: "right" },
  { name: "LOOK_UP", glyph: "⤒", kind: "look" },
  { name: "LOOK_DOWN", glyph: "⤓", kind: "look" },
];

const actionOf = (id) => ACTIONS[id] ?? { name: `action ${id}`, glyph: "?", kind: "look" };
const glyphs = (ids) => ids.map((id) => actionOf(id).glyph).join("");

function spoken(ids) { // "2 x TURN_LEFT, MOVE_FORWARD"
  const parts = [];
  for (const id of ids) {
    const last = parts[parts.length - 1];
    if (last && last.id === id) last.count += 1;
    else parts.push({ id, count: 1 });
  }
  return parts.map(({ id, count }) => (count > 1 ? `${count} × ` : "") + actionOf(id).name).join(", ") || "nothing";
}

const shown = (value) =>
  value === null || value === undefined ? "–"
    : typeof value === "number" ? String(Math.round(value * 1000) / 1000)
      : typeof value === "boolean" ? (value ? "yes" : "no") : String(value);

function table(rows, className) {
  return make("table", { class: className },
    ...rows.map((row) => make("tr", {}, ...row.map((cell, at) =>
      cell instanceof Node ? make("td", {}, cell) : make(at ? "td" : "th", { scope: at ? null : "row" }, shown(cell))))));
}

// Do what was done and what an expert would do agree, as far as both go?
function agrees(done, label) {
  const count = Math.min(done.length, label.length);
  if (!count) return done.length === label.length;
  for (let at = 0; at < count; at += 1) if (done[at] !== label[at]) return false;
  return true;
}
