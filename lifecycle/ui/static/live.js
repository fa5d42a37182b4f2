// The live page: what the command sends, as it comes. It only shows; nothing that is done here reaches the servers.
"use strict";

(() => {
  const {make, span, since, clock, shade} = Parts;
  const get = (id) => document.getElementById(id);
  const KEPT = 200, SAMPLES = 300, STARTING = ["Locking", "Adopting", "PortBound", "Starting", "Gathering", "Joining", "Placing"];
  const servers = new Map();
  let samples = [], chosen = null, picked = null, label = "", skew = 0, ended = false, log = null, logOf = null;

  const now = () => Date.now() / 1000 + skew;
  const latest = (name) => (samples.length && samples[samples.length - 1].servers[name]) || {};

  function link(words, kind) {
    if (get("link").textContent !== words) get("link").textContent = words;
    get("link").className = `link ${kind}`;
  }

  function text(id, words) {
    if (get(id).textContent !== words) get(id).textContent = words;
  }

  function take(news) {
    const before = servers.get(news.name);
    const server = {...before, ...news};
    server.events = [...(before && before.events || []), ...news.events].slice(-KEPT);
    if (!news.attempts) server.attempts = before ? before.attempts : [];
    servers.set(news.name, server);
    if (!servers.has(chosen) || (!before && news.name === (picked || label))) choose(news.name);
    else if (news.name === chosen && news.anew) redraw();
    show();
  }

  function choose(name) {
    chosen = name;
    redraw();
    follow(name);
    show();
    showPlots();
  }

  function redraw() {
    Parts.drawChart(get("chart"), servers.get(chosen).chart);
  }

  function show() {
    const server = servers.get(chosen);
    if (!server) return;
    const {state} = server, final = server.final || [], last = server.attempts[server.attempts.length - 1];
    document.title = `${state} – ${chosen} – Stoker`;
    text("title", label || chosen);
    const whole = servers.size > 1 ? `${[...servers.values()].filter((each) => each.kind === "server" && each.state === "Healthy").length} servers Healthy` : "";
    text("subtitle", whole);
    text("whose", servers.size > 1 ? `${server.kind} ${server.name}` : "State");
    text("state", state);
    get("state").className = `state t-${shade(state)}`;
    text("meaning", (server.chart && server.chart.states[state]) || "");
    showFacts(server, last);
    showAlarm(server, last, final);
    showStart(server, last);
    Parts.lightChart(get("chart"), server.chart, {
      state, been: new Set([...Object.keys(server.seconds), state]), moves: server.moves, latest: server.latest,
    });
    const rest = [...server.events].reverse();
    get("events").replaceChildren(...rest.map((each) => make("tr", {},
      make("td", {class: "at", text: clock(each.at)}),
      make("td", {class: `to t-${shade(each.after)}`, text: each.kind === "transition" || each.kind === "begin" ? each.after : ""}),
      make("td", {text: [each.event, each.words].filter(Boolean).join(": ")}))));
    showAttempts(server, final);
    showRows();
    get("plots").hidden = get("plots").hidden && state !== "Healthy";
    tick();
  }

  function showAttempts(server, final) {
    const place = get("attempts"), open = place.querySelector("details[open]") ? place.querySelectorAll("details").length : 0;
    Parts.drawAttempts(place, server.attempts, final.includes(server.state) ? server.since : now());
    const details = place.querySelectorAll("details");
    if (open && details.length === open) details[0].open = true;
  }

  function showFacts(server, last) {
    const facts = [["for", "for"], ["attempt", "attempt"]];
    const said = {for: since(now() - server.since), attempt: server.attempt ? String(server.attempt) : "–"};
    const add = (key, words, value) => { if (value) { facts.push([key, words]); said[key] = String(value); } };
    add("failures", "failures", server.failures);
    add("model", "model", last && last.model || server.model);
    add("port", "port", last && last.port);
    add("pid", "pid", last && last.pid);
    add("doing", "at", server.doing);
    get("facts").replaceChildren(...facts.map(([key, words]) => make("div", {}, make("dt", {text: words}), make("dd", {id: `fact-${key}`, text: said[key]}))));
  }

  function showAlarm(server, last, final) {
    const bad = last && last.found && server.state !== "Healthy" && server.state !== "Stopped";
    get("alarm").hidden = !bad;
    if (!bad) { get("alarm-body").replaceChildren(); return; }
    const key = `${server.name}/${last.number}/${last.found.summary}/${server.state}`;
    if (get("alarm").dataset.key === key && get("alarm-body").childElementCount) return;
    get("alarm").dataset.key = key;
    text("alarm-title", server.state === "Failed" ? "Given up" : last.number ? `Attempt ${last.number} has failed` : "What failed last");
    const parts = Parts.drawDiagnosis(last.found);
    parts[0].className = "what";
    get("alarm-body").replaceChildren(...parts);
    const details = get("alarm-body").querySelector("details");
    if (details && final.includes(server.state)) details.open = true;
  }

  function showStart(server, last) {
    const going = STARTING.includes(server.state), phases = server.phases;
    get("start").hidden = !going;
    if (!going) return;
    text("start-title", last && last.number ? `Start, attempt ${last.number}` : "Start");
    const begun = make("li", {class: phases.length ? null : "going"}, make("span", {text: phases.length ? "launched" : server.chart && server.chart.states[server.state] || server.state}),
      make("span", {class: "soft", text: phases.length && last ? span(phases[0].began - last.began) : ""}));
    const rows = phases.map((phase, index) => {
      const isLast = index === phases.length - 1;
      const row = make("li", {class: isLast ? "going" : null, "aria-current": isLast ? "step" : null},
        make("span", {text: isLast ? phase.words : phase.name}),
        make("span", {class: "soft", id: isLast ? "phase-time" : null, text: isLast ? since(now() - phase.began) : span(phases[index + 1].began - phase.began)}));
      if (isLast && phase.total) row.append(make("span", {class: "bar"}, make("progress", {max: phase.total, value: phase.done || 0, "aria-label": phase.name})));
      return row;
    });
    get("phases").replaceChildren(begun, ...rows);
  }

  function showRows() {
    get("fleet").hidden = servers.size < 2;
    if (servers.size < 2) return;
    const focused = document.activeElement && document.activeElement.dataset.server;
    const order = (server) => [server.name === label ? 0 : server.kind === "server" && !server.name.startsWith(`${label}-`) ? 1 : 2, server.name];
    const sorted = [...servers.values()].sort((a, b) => order(a)[0] - order(b)[0] || a.name.localeCompare(b.name, undefined, {numeric: true}));
    get("rows").replaceChildren(...sorted.map((server) => {
      const load = latest(server.name), found = [...server.attempts].reverse().find((each) => each.found);
      const figure = (value) => make("td", {class: "number", text: value === undefined ? "–" : Plots.short(value)});
      const what = found ? `${found.found.summary} [${found.found.cause}]` : "";
      return make("tr", {class: server.name === chosen ? "chosen" : null},
        make("td", {}, make("button", {type: "button", "data-server": server.name, "aria-pressed": String(server.name === chosen), text: server.name})),
        make("td", {}, make("span", {class: `pill-s t-${shade(server.state)}`, text: server.state})),
        make("td", {"data-since": server.since, text: since(now() - server.since)}),
        make("td", {class: "number", text: server.attempt || "–"}), make("td", {class: "number", text: server.failures}),
        figure(load.running), figure(load.waiting), figure(load.answered), make("td", {class: "trouble", title: what, text: what}));
    }));
    if (focused) { const button = get("rows").querySelector(`[data-server="${CSS.escape(focused)}"]`); if (button) button.focus(); }
  }

  function showPlots() {
    const series = (key) => samples.map((sample) => [sample.at, (sample.servers[chosen] || {})[key] ?? null]);
    const load = latest(chosen), at = samples.length ? samples[samples.length - 1].at : now();
    const tokens = load.tokens === undefined ? "" : `${Plots.short(load.tokens)} tokens/s`;
    const server = servers.get(chosen);
    get("plots").hidden = !(server && server.state === "Healthy") && !samples.some((sample) => sample.servers[chosen]);
    const nothing = "Nothing to show: this engine does not say.";
    Plots.plot(get("plot-answered"), {title: "Throughput", unit: "requests/s", now: at, nothing, told: `${Plots.short(load.answered || 0)} requests/s`, more: tokens,
      lines: [{name: "requests/s", values: series("answered")}]});
    Plots.plot(get("plot-latency"), {title: "Latency", unit: "seconds", now: at, nothing: "Nothing to show yet: no request has been answered.", told: load.mean === undefined ? "–" : span(load.mean),
      lines: [{name: "mean, seconds", values: series("mean")}, {name: "95th percentile", values: series("worst")}]});
    Plots.plot(get("plot-flight"), {title: "In flight and queue", unit: "requests", now: at, nothing, told: String(load.running || 0), more: load.waiting === undefined ? "" : `${load.waiting} in the queue`,
      lines: [{name: "in flight", values: series("running")}, {name: "queue", values: series("waiting")}]});
  }

  // Each second: times that go on by themselves.
  function tick() {
    const server = servers.get(chosen);
    if (!server) return;
    const final = server.final || [], at = final.includes(server.state) || ended ? server.since : now();
    const seconds = {...server.seconds};
    if (!final.includes(server.state)) seconds[server.state] = (seconds[server.state] || 0) + Math.max(0, at - server.since);
    Parts.drawTimes(get("times"), seconds);
    if (ended) return;
    if (get("fact-for")) text("fact-for", since(now() - server.since));
    const phase = server.phases[server.phases.length - 1];
    if (phase && get("phase-time")) text("phase-time", since(now() - phase.began));
    for (const cell of get("rows").querySelectorAll("[data-since]")) cell.textContent = since(now() - Number(cell.dataset.since));
  }

  function follow(name) {
    if (logOf === name && log) return;
    if (log) log.close();
    logOf = name;
    get("log").replaceChildren();
    text("log-path", "no log yet");
    if (ended) return;
    log = new EventSource(`log/${encodeURIComponent(name)}`);
    log.addEventListener("reset", (event) => {
      const {path, there} = JSON.parse(event.data);
      get("log").replaceChildren();
      text("log-path", path ? there ? path : `${path} is not on this host` : "it has no log of its own");
    });
    log.addEventListener("end", () => log.close());
    log.addEventListener("lines", (event) => {
      const box = get("log"), atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 30;
      for (const line of JSON.parse(event.data).lines) box.append(make("div", {text: line}));
      while (box.childElementCount > 1000) box.firstElementChild.remove();
      if (atEnd) box.scrollTop = box.scrollHeight;
    });
  }

  get("rows").addEventListener("click", (event) => {
    const button = event.target.closest("[data-server]");
    if (button) choose(picked = button.dataset.server);
  });

  const source = new EventSource("events");
  source.addEventListener("hello", (event) => {
    const said = JSON.parse(event.data);
    label = said.label; skew = said.now - Date.now() / 1000; samples = said.samples;
    servers.clear();
    link("live", "on");
  });
  source.addEventListener("server", (event) => take(JSON.parse(event.data)));
  source.addEventListener("sample", (event) => {
    samples = [...samples, JSON.parse(event.data)].slice(-SAMPLES);
    showPlots();
    showRows();
  });
  source.addEventListener("end", () => {
    ended = true;
    source.close();
    if (log) log.close();
    link("the command has ended", "");
    show();
  });
  source.onerror = () => { if (!ended) link("not connected", "off"); };
  setInterval(tick, 1000);
})();
