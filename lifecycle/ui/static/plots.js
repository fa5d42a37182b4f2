// Plots of the last ten minutes: one or two lines, three marks on each axis, and what they say in words.
"use strict";

const Plots = (() => {
  const {make, draw} = Parts;
  const WINDOW = 600, W = 400, H = 150, LEFT = 40, BOTTOM = 20, TOP = 8, RIGHT = 6;

  function nice(top) {
    if (!(top > 0)) return 1;
    const size = 10 ** Math.floor(Math.log10(top));
    return [1, 2, 2.5, 5, 10].map((step) => step * size).find((step) => step >= top * 1.02) || 10 * size;
  }

  const short = (value) => value >= 10000 ? `${Math.round(value / 1000)}k` : value >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(2)));

  // `lines`: [{name, values: [[at, value or null], ...]}]; `told`: the figure that counts now, in words.
  function plot(place, {title, unit, lines, now, told, more, nothing}) {
    const known = lines.filter((line) => line.values.some(([, value]) => value !== null));
    const head = make("div", {class: "head"}, make("h2", {text: title}), make("span", {class: "big", text: known.length ? told : ""}), make("span", {class: "soft", text: known.length && more || ""}));
    if (!known.length) {
      place.replaceChildren(head, make("p", {class: "empty", text: nothing}));
      return;
    }
    const all = known.flatMap((line) => line.values.map(([, value]) => value).filter((value) => value !== null));
    const top = nice(Math.max(...all));
    const first = Math.min(...known.flatMap((line) => line.values.map(([at]) => at)));
    const length = Math.min(WINDOW, Math.max(60, now - first));
    const x = (at) => LEFT + (1 - (now - at) / length) * (W - LEFT - RIGHT);
    const y = (value) => H - BOTTOM - value / top * (H - BOTTOM - TOP);
    const picture = draw("svg", {viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${title}: ${[told, more].filter(Boolean).join(", ")} now, at most ${short(Math.max(...all))} ${unit} in the last ${Math.round(length / 60)} min`});
    for (const part of [0, 0.5, 1]) {
      picture.append(draw("line", {class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(part * top), y2: y(part * top)}));
      const label = draw("text", {x: LEFT - 6, y: y(part * top) + 4, "text-anchor": "end"});
      label.textContent = short(part * top);
      picture.append(label);
    }
    for (const [part, words, anchor] of [[0, `${Math.round(length / 60)} min ago`, "start"], [1, "now", "end"]]) {
      const label = draw("text", {x: LEFT + part * (W - LEFT - RIGHT), y: H - 5, "text-anchor": anchor});
      label.textContent = words;
      picture.append(label);
    }
    known.forEach((line, index) => {
      let path = "", begun = null, last = null;
      const areas = [];
      const close = () => { if (begun !== null && index === 0) areas.push(`${path.slice(path.lastIndexOf("M"))}L${x(last)},${y(0)}L${x(begun)},${y(0)}Z`); begun = null; };
      for (const [at, value] of line.values) {
        if (value === null || at < now - length) { close(); continue; }
        path += `${begun === null ? "M" : "L"}${x(at).toFixed(1)},${y(value).toFixed(1)}`;
        if (begun === null) begun = at;
        last = at;
      }
      close();
      if (areas.length) picture.append(draw("path", {class: "area", d: areas.join("")}));
      picture.append(draw("path", {class: `line${index ? " second" : ""}`, d: path, "vector-effect": "non-scaling-stroke"}));
    });
    picture.setAttribute("preserveAspectRatio", "xMidYMid meet");
    const keys = make("div", {"aria-hidden": "true"}, ...known.map((line, index) =>
      make("span", {class: `key${index ? " second" : ""}`, text: `${line.name}   `})));
    place.replaceChildren(head, picture, keys);
  }

  return {plot, short};
})();
