// The training tree to scale: depth to the right, a click on a frame goes to its step, the node
// under the pointer keeps its colour, and so do its ancestors, which are all that it sees.
"use strict";

const trainingTree = {
  show(tree, walk, onstep) {
    byId("tree-part").hidden = !tree;
    trainingTree.boxes = [];
    trainingTree.isShown = tree?.walk === walk;
    if (!tree) return;
    byId("tree").replaceChildren();
    byId("tree-said").textContent = "";
    byId("tree-words").textContent = tree.reason ?? `${tree.walk === "recorded" ? "" : `Of the walk "${tree.walk}". `}${tree.headline}. Point at a box: what it sees keeps its colour. ${trainingTree.isShown ? "Click a frame to go to its step." : ""}`;
    if (tree.reason) return;
    const width = 1000, lane = tree.num_lanes > 60 ? 9 : 16, scale = width / (tree.depth * 1.02);
    const svg = draw("svg", { viewBox: `-4 -4 ${width + 8} ${tree.num_lanes * lane + 8}`, class: "tree" });
    tree.parent.forEach((parent, node) => {
      if (parent >= 0 && tree.lane[parent] !== tree.lane[node]) {
        const x = tree.left[node] * scale;
        svg.append(draw("path", { class: "branch", d: `M${x} ${tree.lane[parent] * lane + lane * 0.7}V${tree.lane[node] * lane + lane * 0.3}` }));
      }
    });
    tree.runs.forEach(([node, start, length, kind, frame], at) => {
      const box = draw("rect", { x: start * scale, y: tree.lane[node] * lane, width: Math.max(length * scale, 2.5), height: lane * 0.7, fill: tree.colours[at], class: "box" });
      const step = tree.images.includes(kind) ? tree.steps[frame] : null;
      box.addEventListener("mouseenter", () => trainingTree.light(tree, at));
      if (trainingTree.isShown && step !== null && step !== undefined) {
        box.classList.add("image");
        box.addEventListener("click", () => onstep(step));
      }
      trainingTree.boxes.push({ box, node, start, step });
      svg.append(box);
    });
    svg.addEventListener("mouseleave", () => { svg.classList.remove("lit"); byId("tree-said").textContent = ""; });
    byId("tree").append(make("ul", { class: "legend" }, ...tree.legend.map(([colour, words]) => {
      const key = make("i", { class: "key" });
      key.style.background = colour;
      return make("li", {}, key, words);
    })), svg);
    trainingTree.svg = svg;
  },

  light(tree, at) {
    const seen = new Set();
    const [node, start] = tree.runs[at];
    for (let n = node; n >= 0; n = tree.parent[n]) seen.add(n);
    for (const other of trainingTree.boxes) other.box.classList.toggle("seen", seen.has(other.node) && (other.node !== node || other.start <= start));
    trainingTree.svg.classList.add("lit");
    byId("tree-said").textContent = tree.texts[at];
  },

  step(number) {
    if (!trainingTree.isShown) return;
    const here = Math.max(-1, ...trainingTree.boxes.map(({ step }) => (step <= number ? step ?? -1 : -1)));
    for (const { box, step } of trainingTree.boxes) box.classList.toggle("now", step === here);
  },
};
