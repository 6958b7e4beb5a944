// Top-down maps, one per floor: +x right, -z (yaw 0) up, metres as SVG units.
//
//   a point is on the floor nearest in height; a stretch between two floors is drawn dashed on both
"use strict";

const floorMap = {
  // content: of an episode; track: the chosen walk; other: the reference to compare with, or null
  show(content, track, other) {
    const floors = content.floors;
    const nearest = (y) => floors.reduce((best, floor, at) => Math.abs(floor.height - y) < Math.abs(floors[best].height - y) ? at : best, 0);
    const spots = track ? track.spots : [content.start];
    const points = [...content.reference, ...content.goals, ...spots, ...(other ? other.spots : []), content.start];
    const boxes = floors.map((floor, at) => boxOf(floor, points.filter((p) => nearest(p[1]) === at), content.goals.filter((g) => nearest(g[1]) === at)));
    floorMap.parts = floors.map((floor, at) => {
      const [x, z, width, height] = boxes[at];
      const unit = Math.max(width, height) / 100; // one percent of the larger side
      const svg = draw("svg", { class: floor.image ? null : "bare-floor", viewBox: `${x} ${z} ${width} ${height}`, role: "img", "aria-label": `map of floor ${at}` });
      if (floor.image) {
        const [left, top, wide, high] = floor.box;
        svg.append(draw("image", { href: floor.image, x: left, y: top, width: wide, height: high, preserveAspectRatio: "none" }));
      } else svg.append(draw("rect", { x, y: z, width, height, class: "bare" }));
      svg.append(...lines(content.reference, nearest, at, "reference", 0.7 * unit));
      if (other) svg.append(...lines(other.spots, nearest, at, "other", 0.7 * unit));
      const ahead = draw("g", {}), walked = draw("g", {}), agent = draw("g", { class: "agent" });
      ahead.append(...lines(spots, nearest, at, "ahead", 0.7 * unit));
      svg.append(ahead, walked);
      for (const [gx, gy, gz, radius] of content.goals) {
        if (nearest(gy) !== at) continue;
        const r = 1.8 * unit;
        svg.append(draw("circle", { class: "goal-area", cx: gx, cy: gz, r: Math.max(radius, 0.01), "stroke-width": 0.5 * unit }),
          draw("path", { class: "goal", d: `M${gx - r} ${gz - r}L${gx + r} ${gz + r}M${gx - r} ${gz + r}L${gx + r} ${gz - r}`, "stroke-width": 1.1 * unit }));
      }
      if (nearest(content.start[1]) === at) svg.append(draw("circle", { class: "start", cx: content.start[0], cy: content.start[2], r: 1.6 * unit }));
      svg.append(agent);
      const metres = scaleBar(width);
      const bar = `M${x + 2 * unit} ${z + height - 2 * unit}h${metres}`;
      svg.append(draw("path", { class: "scale-edge", d: bar, "stroke-width": 1.8 * unit }), draw("path", { class: "scale", d: bar, "stroke-width": 0.7 * unit }),
        draw("text", { class: "scale-text", x: x + 2 * unit, y: z + height - 4 * unit, "font-size": 5 * unit, "stroke-width": unit }, `${metres} m`));
      const words = make("figcaption", {});
      const figure = make("figure", { "data-floor": at }, svg, words);
      return { svg, walked, agent, unit, figure, words, at };
    });
    floorMap.state = { content, floors, spots, nearest };
    const isWide = boxes.map((box) => box[2] / box[3]);
    byId("maps").replaceChildren(...floorMap.parts.map((part, at) => {
      part.figure.style.flexGrow = String(isWide[at]);
      return part.figure;
    }), legend(content, track, other));
  },

  step(number) {
    const { content, floors, spots, nearest } = floorMap.state;
    const [x, y, z, yaw] = spots[Math.min(number, spots.length - 1)];
    const here = nearest(y);
    for (const part of floorMap.parts) {
      const { unit, at } = part;
      part.walked.replaceChildren(...lines(spots.slice(0, number + 1), nearest, at, "walked", 1.1 * unit));
      part.agent.replaceChildren();
      part.figure.classList.toggle("here", at === here);
      if (at === here) {
        const turn = (-yaw * 180) / Math.PI; // clockwise on the map, whose y runs along +z
        part.agent.append(draw("path", { d: `M0 ${-3.4 * unit}L${2.2 * unit} ${2.2 * unit}L0 ${1.1 * unit}L${-2.2 * unit} ${2.2 * unit}Z`, transform: `translate(${x} ${z}) rotate(${turn})`, "stroke-width": 0.4 * unit }));
      }
      const marks = [];
      if (at === here) marks.push("agent");
      if (nearest(content.start[1]) === at) marks.push("start");
      if (content.goals.some((goal) => nearest(goal[1]) === at)) marks.push("goal");
      part.words.textContent = `floor ${at} at ${floors[at].height.toFixed(1)} m${marks.length ? `: ${marks.join(", ")} here` : ""}${floors[at].image ? "" : " (no scene, so no walls)"}`;
    }
  },
};

function boxOf(floor, points, goals) {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  const add = (x, z, r) => { left = Math.min(left, x - r); right = Math.max(right, x + r); top = Math.min(top, z - r); bottom = Math.max(bottom, z + r); };
  if (floor.box) { add(floor.box[0], floor.box[1], 0); add(floor.box[0] + floor.box[2], floor.box[1] + floor.box[3], 0); }
  for (const [x, , z] of points) if (Number.isFinite(x) && Number.isFinite(z)) add(x, z, 0.6);
  for (const [x, , z, radius] of goals) if (Number.isFinite(x) && Number.isFinite(z)) add(x, z, Math.min(radius, 5) + 0.3);
  if (!Number.isFinite(left)) return [-1, -1, 2, 2];
  return [left, top, Math.max(right - left, 1), Math.max(bottom - top, 1)];
}

function lines(points, nearest, floor, name, width) {
  const here = [], between = [];
  for (let at = 1; at < points.length; at += 1) {
    const [a, b] = [points[at - 1], points[at]];
    if (![a[0], a[2], b[0], b[2]].every(Number.isFinite) || (a[0] === b[0] && a[2] === b[2])) continue;
    const ends = [nearest(a[1]), nearest(b[1])];
    if (!ends.includes(floor)) continue;
    (ends[0] === ends[1] ? here : between).push(`M${a[0]} ${a[2]}L${b[0]} ${b[2]}`);
  }
  const paths = [];
  if (here.length) paths.push(draw("path", { class: `line ${name}`, d: here.join(""), "stroke-width": width }));
  if (between.length) paths.push(draw("path", { class: `line ${name}`, d: between.join(""), "stroke-width": width, "stroke-dasharray": `${2 * width} ${2 * width}` }));
  return paths;
}

function scaleBar(width) { return [10, 5, 2, 1, 0.5].find((metres) => metres < width / 4) ?? 0.5; }

function legend(content, track, other) {
  const entries = [["start", "start"], ["goal", "goal and its radius"]];
  if (track) entries.push(["walked", `walked: ${track.name}`], ["ahead", "still to come"]);
  if (content.reference.length > 1) entries.push(["reference", "reference path"]);
  if (other) entries.push(["other", other.name]);
  return make("ul", { class: "legend" }, ...entries.map(([name, words]) => make("li", {}, make("i", { class: `key ${name}` }), words)));
}
