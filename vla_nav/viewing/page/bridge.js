// Data files call vlaNav.index and vlaNav.episode: scripts are all that a page opened as file://
// may load beside images. Nothing here looks into what they hand over.
"use strict";

const vlaNav = {
  data: null,
  episodes: new Map(), // number -> content, the most recent last
  index(data) { vlaNav.data = data; },
  episode(number, digest, line, content) {
    vlaNav.episodes.delete(number);
    vlaNav.episodes.set(number, content);
    if (vlaNav.episodes.size > 24) vlaNav.episodes.delete(vlaNav.episodes.keys().next().value);
  },
  load(number) {
    if (vlaNav.episodes.has(number)) return Promise.resolve(vlaNav.episodes.get(number));
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      const file = `data/episodes/${String(number).padStart(6, "0")}.js`;
      script.src = file;
      const done = () => {
        script.remove();
        const content = vlaNav.episodes.get(number);
        if (content) resolve(content);
        else reject(new Error(`${file} is missing or damaged; run vla-nav view again`));
      };
      script.onload = script.onerror = done;
      document.head.append(script);
    });
  },
};
