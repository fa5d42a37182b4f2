// The page of a trace: one life at a time, stepped through record by record.
"use strict";

(() => {
  const {make, span, clock, shade} = Parts;
  const data = JSON.parse(document.getElementById("data").textContent);
  const get = (id) => document.getElementById(id);
  const AROUND = 150;
  let life = null, at = 0;

  const upTo = (items) => items.filter((item) => item.index <= at);

  function choose(number) {
    life = data.lives[number];
    Parts.drawChart(get("chart"), life.chart);
    get("slider").max = String(life.records.length - 1);
    const length = Math.max(life.last - life.began, 1e-6);
    get("strip").replaceChildren(...life.stretches.map((each, index) => {
      const until = index + 1 < life.stretches.length ? life.stretches[index + 1].began : life.last;
      const part = make("span", {class: `b-${shade(each.state)}`, title: `${each.state}, ${span(until - each.began)}`});
      part.style.left = `${(each.began - life.began) / length * 100}%`;
      part.style.width = `${(until - each.began) / length * 100}%`;
      return part;
    }), make("i", {id: "needle"}));
    show(life.records.length - 1);
  }

  function show(index) {
    at = Math.max(0, Math.min(index, life.records.length - 1));
    const record = life.records[at], stretches = upTo(life.stretches), last = at === life.records.length - 1;
    const here = stretches[stretches.length - 1] || {state: "", began: life.began};
    get("state").textContent = here.state;
    get("state").className = `state t-${shade(here.state)}`;
    get("meaning").textContent = (life.chart && life.chart.states[here.state]) || "";
    get("when").textContent = `${clock(record.at)}, ${span(record.at - life.began)} after the beginning`;
    get("since").textContent = span(record.at - here.began);
    get("what").textContent = [record.kind === "transition" ? `${record.before} → ${record.after}` : record.kind, record.event].filter(Boolean).join(", ");
    get("words").textContent = record.words || "–";
    get("slider").value = String(at);
    get("slider").setAttribute("aria-valuetext", `record ${at + 1} of ${life.records.length}: ${here.state}`);
    get("count").textContent = `${at + 1} of ${life.records.length}`;
    for (const id of ["first", "back"]) get(id).disabled = at === 0;
    for (const id of ["next", "end"]) get(id).disabled = last;
    get("needle").style.left = `${(record.at - life.began) / Math.max(life.last - life.began, 1e-6) * 100}%`;
    const moves = [], been = new Set(stretches.map((each) => each.state));
    for (let number = 0; number <= at; number += 1) {
      const each = life.records[number];
      if (each.kind === "transition" || each.kind === "internal") moves.push([each.before, each.event, each.after, 1]);
    }
    const taken = record.kind === "transition" ? [record.before, record.event, record.after] : null;
    Parts.lightChart(get("chart"), life.chart, {state: here.state, been, moves, latest: taken});
    const seconds = {};
    stretches.forEach((each, number) => {
      if (each.state === "Stopped" || each.state === "Failed") return;
      const until = number + 1 < stretches.length ? stretches[number + 1].began : record.at;
      seconds[each.state] = (seconds[each.state] || 0) + until - each.began;
    });
    Parts.drawTimes(get("times"), seconds);
    Parts.drawAttempts(get("attempts"), upTo(life.attempts), record.at);
    drawRecords();
  }

  function drawRecords() {
    const from = Math.max(0, at - AROUND), to = Math.min(life.records.length, at + AROUND + 1);
    const rows = [];
    for (let number = from; number < to; number += 1) {
      const each = life.records[number], state = each.kind === "transition" || each.kind === "begin" ? each.after : "";
      const row = make("tr", {class: number === at ? "at-it" : null, "aria-current": number === at ? "step" : null, "data-number": number},
        make("td", {class: "at", text: (each.at - life.began).toFixed(3)}),
        make("td", {class: `to t-${shade(state)}`, text: state}),
        make("td", {text: [each.event, each.words].filter(Boolean).join(": ")}));
      rows.push(row);
    }
    get("records").replaceChildren(...rows);
    const row = get("records").querySelector(".at-it"), box = get("events");
    if (row.offsetTop < box.scrollTop || row.offsetTop + row.offsetHeight > box.scrollTop + box.clientHeight)
      box.scrollTop = row.offsetTop - box.clientHeight / 2;
  }

  get("records").addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row) show(Number(row.dataset.number));
  });
  get("strip").addEventListener("click", (event) => {
    const box = get("strip").getBoundingClientRect();
    const time = life.began + (event.clientX - box.left) / box.width * (life.last - life.began);
    let found = 0;
    life.records.forEach((each, number) => { if (each.at <= time) found = number; });
    show(found);
  });
  get("slider").addEventListener("input", (event) => show(Number(event.target.value)));
  const step = {first: () => show(0), back: () => show(at - 1), next: () => show(at + 1), end: () => show(life.records.length - 1)};
  for (const [id, act] of Object.entries(step)) get(id).addEventListener("click", act);
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || ["INPUT", "SELECT"].includes(event.target.tagName)) return;
    const act = {ArrowLeft: step.back, ArrowRight: step.next, Home: step.first, End: step.end}[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  const lives = get("life");
  lives.replaceChildren(...data.lives.map((each, number) => make("option", {
    value: number, text: `${each.server} ${each.kind ? `(${each.kind}) ` : ""}${clock(each.began)}, ${span(each.last - each.began)}, ${each.state}${each.source ? `, ${each.source}` : ""}`,
  })));
  lives.addEventListener("change", () => choose(Number(lives.value)));
  get("chooser").hidden = data.lives.length < 2;
  choose(0);
})();
