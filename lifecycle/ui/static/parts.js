// What the live page and the page of a trace have in common. Texts reach the page as text, never as HTML.
"use strict";

const Parts = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  function make(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (key === "text") made.textContent = value;
      else if (key === "class") made.className = value;
      else made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children);
    return made;
  }

  function draw(name, attributes = {}) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  function span(seconds) {
    if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
    if (seconds < 0) seconds = 0;
    if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
    if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(2) : seconds.toFixed(1)} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
    if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds % 3600 / 60)} min`;
    return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds % 86400 / 3600)} h`;
  }

  // Whole seconds, for what is told anew each second.
  const since = (seconds) => seconds < 60 ? `${Math.max(0, Math.floor(seconds))} s` : span(seconds);

  function clock(at) {
    return new Date(at * 1000).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false});
  }

  const SHADES = {
    Healthy: "good", Hosting: "good", Present: "good", Starting: "work", PortBound: "work", Adopting: "work",
    Locking: "wait", Gathering: "wait", Joining: "wait", Placing: "wait", Asleep: "rest", Dormant: "rest", Idle: "rest",
    Draining: "ends", Backoff: "back", Stopped: "over", Failed: "lost",
  };
  const shade = (state) => SHADES[state] || "work";

  // The picture comes from Stoker's own chart; it is parsed as XML and never runs anything.
  function drawChart(place, chart) {
    place.replaceChildren();
    if (!chart) {
      place.append(make("p", {class: "empty", text: "This life is of a chart that this version of Stoker does not have."}));
      return;
    }
    const parsed = new DOMParser().parseFromString(chart.svg.replace("<svg ", `<svg xmlns="${SVG}" `), "image/svg+xml");
    const picture = document.importNode(parsed.documentElement, true);
    const natural = Number(picture.getAttribute("width"));
    picture.style.minWidth = `${Math.round(natural * 0.66)}px`;
    picture.removeAttribute("width");
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", chart.title);
    for (const group of picture.querySelectorAll("[data-state]")) {
      const title = draw("title");
      title.textContent = `${group.dataset.state}: ${chart.states[group.dataset.state] || ""}`;
      group.prepend(title);
    }
    place.append(picture);
  }

  // `moves`: [before, event, after, how often]; `latest`: the same of the last one taken.
  function lightChart(place, chart, {state, been, moves, latest}) {
    const picture = place.querySelector("svg");
    if (!picture || !chart) return;
    picture.setAttribute("aria-label", `${chart.title}: ${state} now`);
    const times = new Map(), last = new Set();
    for (const edge of chart.edges) {
      const same = (move) => move[0] === edge.before && move[2] === edge.after && edge.events.includes(move[1]);
      times.set(String(edge.number), moves.filter(same).reduce((sum, move) => sum + move[3], 0));
      if (latest && same(latest)) last.add(String(edge.number));
    }
    for (const part of picture.querySelectorAll("[data-edges]")) {
      const numbers = part.dataset.edges.split(" ");
      const count = numbers.reduce((sum, number) => sum + times.get(number), 0);
      part.classList.toggle("taken", count > 0);
      part.classList.toggle("latest", numbers.some((number) => last.has(number)));
      if (part.classList.contains("badge")) {
        const told = count < 1000 ? String(count) : `${Math.floor(count / 1000)}k`;
        part.querySelector("text").textContent = told;
      }
    }
    for (const group of picture.querySelectorAll("[data-state]")) {
      group.classList.toggle("been", been.has(group.dataset.state));
      group.classList.toggle("here", group.dataset.state === state);
      group.classList.add(`s-${shade(group.dataset.state)}`);
    }
    const here = picture.querySelector(".here");
    if (here && place.scrollWidth > place.clientWidth) {
      const box = here.getBoundingClientRect(), outer = place.getBoundingClientRect();
      place.scrollLeft += box.left + box.width / 2 - outer.left - outer.width / 2;
    }
  }

  function drawTimes(place, seconds) {
    const total = Object.values(seconds).reduce((sum, each) => sum + each, 0);
    const parts = [];
    for (const [state, spent] of Object.entries(seconds)) {
      const share = total > 0 ? spent / total : 0;
      const fill = make("span", {class: `fill b-${shade(state)}`});
      fill.style.width = `${(share * 100).toFixed(1)}%`;
      parts.push(
        make("span", {text: state}), make("span", {class: "track", "aria-hidden": "true"}, fill),
        make("span", {class: "much", text: `${span(spent)}, ${Math.round(share * 100)} %`}),
      );
    }
    place.replaceChildren(...parts);
  }

  function drawDiagnosis(found, tail = true) {
    const parts = [make("p", {}, make("span", {text: `${found.summary || ""} `}), make("span", {class: "cause", text: `[${found.cause || ""}]`}))];
    for (const [key, words] of [["evidence", "shown by"], ["advice", "what to do"], ["given_up", "not tried again"]])
      if (found[key]) parts.push(make("p", {}, make("span", {class: "soft", text: `${words}: `}), make("span", {text: found[key]})));
    if (tail && found.tail && found.tail.length) {
      const details = make("details", {}, make("summary", {text: "last log lines"}), make("pre", {tabindex: "0", text: found.tail.join("\n")}));
      parts.push(details);
    }
    if (found.log) parts.push(make("p", {class: "soft", text: `whole log: ${found.log}`}));
    return parts;
  }

  // `until`: the time as far as which the attempts are told.
  function drawAttempts(place, attempts, until) {
    if (!attempts.length) {
      place.replaceChildren(make("p", {class: "empty", text: "no attempt yet"}));
      return;
    }
    place.replaceChildren(...attempts.slice().reverse().map((each) => {
      const end = each.ended === null || each.ended > until ? until : each.ended;
      const open = each.ended === null || each.ended > until;
      const served = each.healthy !== null && each.healthy <= until;
      const bad = each.found && each.foundAt <= until;
      const how = served
        ? `Healthy after ${span(each.healthy - each.began)}, ${open ? "since then for" : "for"} ${span(end - each.healthy)}`
        : open ? `begun ${span(end - each.began)} ago` : `not Healthy in ${span(end - each.began)}`;
      const who = [each.pid ? `pid ${each.pid}` : "", each.port ? `port ${each.port}` : ""].filter(Boolean).join(", ");
      const box = make("article", {class: `attempt${bad ? " bad" : open && !served ? " open" : ""}`},
        make("h3", {text: each.number ? `Attempt ${each.number}` : "Its life"}),
        make("p", {text: [how, who].filter(Boolean).join("; ")}));
      if (bad) box.append(...drawDiagnosis(each.found));
      return box;
    }));
  }

  return {make, draw, span, since, clock, shade, drawChart, lightChart, drawTimes, drawAttempts, drawDiagnosis};
})();
