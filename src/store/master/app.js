"use strict";
/* The page of a master. Whatever a name or a key holds, it gets into the page as text only (textContent, attributes),
 * never as markup. Nothing is loaded from elsewhere, nothing is stored but the theme. */
const PERIOD_MS = 2000, HIDDEN_MS = 15000, SLOW_TURNS = 5; // each so many refreshes: what changes slowly
const PAGE = 50, EVENTS_KEPT = 300, SAMPLES_KEPT = 720;
const byId = name => document.getElementById(name);

/* ---- text ---- */

function size(bytes) {
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (bytes >= 1023.995 && unit < units.length - 1) { bytes /= 1024; unit++; }
  return bytes.toFixed(unit ? 2 : 0) + " " + units[unit];
}
const count = number => Math.round(number).toLocaleString("en");
const rate = number => (number >= 100 ? count(number) : number >= 1 || number === 0 ? number.toFixed(number ? 1 : 0) : number.toPrecision(2)) + "/s";
const percent = ratio => (100 * ratio).toFixed(1) + " %";
function duration(seconds) {
  if (seconds < 120) return Math.floor(seconds) + " s";
  if (seconds < 7200) return Math.floor(seconds / 60) + " min";
  if (seconds < 172800) return Math.floor(seconds / 3600) + " h " + Math.floor(seconds / 60 % 60) + " min";
  return Math.floor(seconds / 86400) + " days";
}
const micro = us => us < 1000 ? us + " µs" : (us / 1000).toFixed(us < 10000 ? 1 : 0) + " ms";
const clock = ms => new Date(ms).toLocaleTimeString([], {hour12: false});

/* ---- elements ---- */

function add(parent, tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  parent.append(element);
  return element;
}
function set(element, text) { // what is marked or read aloud is left alone while it says the same
  if (element.textContent !== text) element.textContent = text;
}
function setClass(element, name) { if (element.className !== name) element.className = name; }
function addBar(parent) {
  const bar = add(parent, "div", undefined, "bar");
  bar.setAttribute("role", "progressbar");
  bar.setAttribute("aria-valuemin", "0");
  bar.setAttribute("aria-valuemax", "100");
  add(bar, "i");
  return bar;
}
function setBar(bar, ratio, label, isFull) {
  const value = Math.max(0, Math.min(100, 100 * ratio));
  bar.firstChild.style.width = value.toFixed(1) + "%";
  bar.setAttribute("aria-valuenow", value.toFixed(0));
  bar.setAttribute("aria-label", label);
  bar.title = label;
  setClass(bar, isFull ? "bar full" : "bar");
}
/* Makes children of one list those of another, by key: what is there stays, and keeps its focus. Of equal keys the
 * second one is another. */
function keyed(parent, items, keyOf, make, update) {
  const there = new Map([...parent.children].map(child => [child.dataset.key, child]));
  const taken = new Set();
  const wanted = items.map(item => {
    let key = String(keyOf(item));
    while (taken.has(key)) key += "\n";
    taken.add(key);
    let child = there.get(key);
    there.delete(key);
    if (!child) { child = make(item); child.dataset.key = key; }
    update(child, item);
    return child;
  });
  for (const child of there.values()) child.remove();
  wanted.forEach((child, at) => { if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] || null); });
}

/* ---- asking ---- */

let bearer = ""; // a key that somebody has typed in; gone with the page
async function ask(path, body) {
  const options = {cache: "no-store"};
  if (body) Object.assign(options, {method: "POST", body: JSON.stringify(body), headers: {"Content-Type": "application/json", ...(bearer ? {Authorization: "Bearer " + bearer} : {})}});
  const reply = await fetch(path, options);
  if (reply.ok) return reply.json();
  let why = "";
  try { const text = await reply.text(); why = text.startsWith("{") ? JSON.parse(text).error_message : text.trim(); } catch { /* its number says enough */ }
  throw Object.assign(new Error(`the master answers ${reply.status}${why ? ": " + why : ""}`), {status: reply.status});
}

/* ---- now ---- */

function showCards(cards, parent = byId("cards")) {
  keyed(parent, cards, card => card.name, card => {
    const element = document.createElement("div");
    element.className = "card";
    add(element, "b"); add(element, "span", card.name); add(element, "span");
    if (card.ratio !== undefined) addBar(element);
    return element;
  }, (element, card) => {
    set(element.children[0], card.value);
    set(element.children[2], card.more || "");
    if (card.ratio !== undefined) setBar(element.children[3], card.ratio, card.name + ": " + percent(card.ratio), card.ratio > .97);
  });
}

function showNow(data) {
  const memory = data.memory, second = data.per_second, segments = data.segments;
  const per = name => second[name] === undefined ? "–" : rate(second[name]);
  const looked = second.lookups || 0;
  const bad = [["suspect", segments.suspect], ["being taken in", segments.recovering], ["draining", segments.draining], ["drained", segments.drained]].filter(([, number]) => number);
  showCards([
    {name: "memory used", value: size(memory.used_bytes), more: `of ${size(memory.capacity_bytes)}` + (memory.populated_bytes < memory.capacity_bytes ? `, ${percent(memory.populated_bytes / memory.capacity_bytes)} ready` : ""), ratio: memory.capacity_bytes ? memory.used_bytes / memory.capacity_bytes : 0},
    {name: "objects", value: count(data.objects), more: data.soft_pinned ? count(data.soft_pinned) + " pinned softly" : ""},
    {name: "found of what is looked for", value: looked > 0 ? percent(second.lookup_hits / looked) : data.hit_ratio_lately === null ? "–" : percent(data.hit_ratio_lately), more: looked > 0 ? per("lookups") + " looked for" : "nothing is looked for now"},
    {name: "puts", value: per("put_end_items"), more: second.put_bytes === undefined ? "" : size(second.put_bytes) + "/s"},
    {name: "gets", value: per("get_items"), more: second.get_hit_bytes === undefined ? "" : `${size(second.get_hit_bytes)}/s found`},
    {name: "removes", value: per("remove_items")},
    {name: "evicted", value: per("evicted_objects"), more: `${count(data.totals.evicted_objects)} so far, ${size(data.totals.evicted_bytes)}` + (data.eviction_ages?.lately ? `; half of the last within ${lasted(data.eviction_ages.median_ms)} of their use` : "")},
    {name: "segments", value: count(segments.mounted), more: bad.map(([name, number]) => number + " " + name).join(", ") || `${count(data.members)} members, ${count(data.connections)} connections`},
    {name: "largest free piece", value: size(memory.largest_free_bytes), more: size(memory.clearing_bytes + memory.quarantine_bytes) + " being cleared"},
  ]);
  showPromises(data);
  showTroubles(data);
  showTimes(byId("turns"), data.turns.counts, data.turns.bounds_us, micro);
  byId("puts-part").hidden = !data.puts; // as of all below: a master of a release before does not say it
  if (data.puts) showTimes(byId("puts"), data.puts.counts, data.puts.bounds_ms, lasted);
  showEvictions(data);
  showRecovery(data.recovery);
  showDrains(data.drains);
  showDisks(data.disks);
}

function showTroubles(data) {
  const {segments, memory, disks, per_second: second} = data, found = [];
  const say = (text, isBad) => found.push({text, isBad});
  if (segments.mounted === 0) say("No node has joined yet: nothing can be put. A store node, or an engine that lends memory, is given this master's address.");
  const suspect = segments.suspect - Math.min(segments.suspect, segments.recovering); // what is being taken in counts as such, too
  if (suspect) say(`${suspect} of ${segments.mounted} segments are suspect: what lies there is not offered until their nodes answer.`, true);
  if (segments.recovering) say(`The contents of ${segments.recovering} segments are being taken in.`);
  if (second.allocation_failures > 0) say(`Puts find no room, ${rate(second.allocation_failures)}: ${percent(memory.used_bytes / Math.max(1, memory.capacity_bytes))} of the memory is used, the largest free piece has ${size(memory.largest_free_bytes)}.`, true);
  if (memory.clearing_bytes + memory.quarantine_bytes > .05 * memory.capacity_bytes) say(`${size(memory.clearing_bytes + memory.quarantine_bytes)} wait for their nodes to clear them.`);
  for (const name of ["off", "absent", "read_only", "slow"]) if (disks[name]) say(`${disks[name]} disks are ${name.replace("_", "-")}; the log of their nodes says why.`, name !== "slow");
  for (const accuser of data.accusers) say(`The host of ${accuser.host_of} reports ${accuser.nodes} nodes that answer: look at its link, and its limits of descriptors and memory.`);
  if (data.turns.longest_us > 200000) say(`The master is late: nobody was answered for ${micro(data.turns.longest_us)}.`, true);
  keyed(byId("troubles"), found, one => one.text.replace(/[\d.,]+/g, "#"), () => document.createElement("li"), (element, one) => { set(element, one.text); setClass(element, one.isBad ? "bad" : ""); });
}

/* A row for each bound: how many there were up to it, and above the one before. */
function showTimes(parent, counts, bounds, text) {
  const all = counts.reduce((sum, one) => sum + one, 0);
  const rows = counts.map((number, at) => ({number, name: at < bounds.length ? "up to " + text(bounds[at]) : "longer"}));
  keyed(parent, rows, row => row.name, row => {
    const element = document.createElement("tr");
    add(element, "th", row.name).scope = "row"; addBar(add(element, "td")); add(element, "td", "", "number");
    return element;
  }, (element, row) => { setBar(element.children[1].firstChild, all ? row.number / all : 0, row.name); set(element.children[2], count(row.number)); });
}

/* The same from an answer's {bound in seconds: number}. */
const bounded = counts => Object.entries(counts).sort((a, b) => parseFloat(a[0].replace("+Inf", "Infinity")) - parseFloat(b[0].replace("+Inf", "Infinity")));
function showSpans(parent, counts) {
  const rows = bounded(counts);
  showTimes(parent, rows.map(([, number]) => number), rows.slice(0, -1).map(([bound]) => Number(bound)), duration);
}

/* A part of all, with its word. */
function showParts(parent, counts) {
  const rows = Object.entries(counts).filter(([, number]) => number).sort((a, b) => b[1] - a[1]), all = rows.reduce((sum, [, number]) => sum + number, 0);
  keyed(parent, rows, ([why]) => why, ([why]) => {
    const row = document.createElement("tr");
    add(row, "td", why.replaceAll("_", " ")); add(row, "td", "", "number"); addBar(add(row, "td"));
    return row;
  }, (row, [why, number]) => { set(row.children[1], count(number)); setBar(row.children[2].firstChild, number / all, `${why}: ${percent(number / all)}`); });
}

function showEvictions(data) {
  const ages = data.eviction_ages;
  byId("evictions-part").hidden = !ages || data.totals.evicted_objects === 0;
  if (!ages) return;
  showParts(byId("evictions"), data.evictions);
  showSpans(byId("ages"), ages.seconds);
  set(byId("ages-lately"), ages.lately ? `Of the last ${ages.lately} that the sample has, the use before was ${lasted(ages.least_ms)} to ${lasted(ages.most_ms)} ago, of half of them at most ${lasted(ages.median_ms)}.` : "");
}

/* What is promised, and asked for ahead; nothing where nobody does. */
function showPromises(data) {
  const pins = data.firm_pins || {}, cards = [];
  if (pins.bytes || pins.expired || pins.refused) cards.push({name: "pinned firmly", value: size(pins.bytes), more: `of ${size(pins.budget_bytes)}, ${count(pins.objects)} objects; ${count(pins.expired)} are over, ${count(pins.refused)} were refused`, ratio: pins.budget_bytes ? pins.bytes / pins.budget_bytes : 0});
  if (data.hard_pin_bytes) cards.push({name: "pinned for ever", value: size(data.hard_pin_bytes)});
  for (const [hint, outcomes] of Object.entries(data.hints || {})) {
    const some = Object.entries(outcomes).filter(([, number]) => number);
    if (some.length) cards.push({name: "hints: " + hint, value: count(some.reduce((sum, [, number]) => sum + number, 0)), more: some.map(([name, number]) => `${count(number)} ${name.replace("_", " ")}`).join(", ")});
  }
  byId("promises-part").hidden = cards.length === 0;
  showCards(cards, byId("promises"));
}

/* What takes long: a line of text, a bar, and what can be done about it. */
function showProgress(parent, items) {
  keyed(parent, items, item => item.key, item => {
    const element = document.createElement("li");
    add(element, "span"); addBar(element);
    if (item.act) add(element, "button", item.action).addEventListener("click", item.act);
    return element;
  }, (element, item) => {
    set(element.children[0], item.text);
    setBar(element.children[1], item.ratio, item.label);
    if (item.act) element.children[2].hidden = Boolean(item.isOver);
  });
}

function showDrains(drains) {
  const recent = drains.filter((job, at) => job.status === "RUNNING" || at < 3);
  byId("drains-part").hidden = recent.length === 0;
  showProgress(byId("drains"), recent.map(job => {
    const name = job.segments[0] + (job.segments.length > 1 ? ` and ${job.segments.length - 1} more` : "");
    return {
      key: job.job_id, label: "drain of " + name, action: "take back", act: () => confirmDrain(false, job.segments), isOver: job.status === "CANCELED" || job.status === "FAILED",
      text: `${name}: ${job.status.toLowerCase()}, ${count(job.succeeded_units)} of ${count(job.total_units)} objects, ${size(job.migrated_bytes)} moved` + (job.status === "RUNNING" && job.units_per_second > 0 ? `, ${rate(job.units_per_second)}, about ${duration(Math.ceil(job.left_ms / 1000))} left` : ""),
      ratio: job.total_units ? job.succeeded_units / job.total_units : job.status === "SUCCEEDED" ? 1 : 0,
    };
  }));
}

const STAGES = {awaited: "its owner is awaited", told: "is being told", compared: "is being compared", cleared: "its owner clears what is refused", judged: "all is told"};
function showRecovery(at) {
  byId("recovery-part").hidden = !at || at.segments === 0;
  if (!at || at.segments === 0) return;
  const all = at.segments_done + at.segments, most = at.objects_are_known ? "of at most " : "of more than ";
  const whole = {
    key: "", label: "contents taken in", ratio: at.objects_are_known && at.objects_at_most ? at.objects_told / at.objects_at_most : at.segments_done / all,
    text: `${count(at.segments_done)} of ${count(all)} segments, ${count(at.objects_told)} ${most}${count(at.objects_at_most)} objects, ${rate(at.objects_per_second)}, for ${duration(at.since_ms / 1000)}` +
      (at.left_ms ? `, about ${duration(Math.ceil(at.left_ms / 1000))} left` : "") + (at.segments_awaited ? `; the owners of ${count(at.segments_awaited)} are awaited` : ""),
  };
  showProgress(byId("recovery"), [whole, ...at.list.map((one, i) => ({
    key: i + one.name, label: one.name, text: `${one.name}: ${STAGES[one.stage] || one.stage}, ${count(one.objects_told)} objects`,
    ratio: one.objects_at_most ? one.objects_told / one.objects_at_most : 0,
  }))]);
}

function showDisks(disks) {
  byId("disks-part").hidden = disks.mounted + disks.off === 0;
  showCards([
    {name: "disks used", value: size(disks.used_bytes), more: "of " + size(disks.capacity_bytes), ratio: disks.capacity_bytes ? disks.used_bytes / disks.capacity_bytes : 0},
    {name: "objects on disks", value: count(disks.objects)},
    {name: "disks", value: count(disks.mounted), more: ["absent", "slow", "read_only", "off"].filter(name => disks[name]).map(name => `${disks[name]} ${name.replace("_", "-")}`).join(", ") || "all well"},
  ], byId("disks"));
}

/* Who would follow. A standby's clock may differ from ours: no time is below zero. */
function showWaiting(data) {
  byId("waiting-part").hidden = !data.standbys;
  if (!data.standbys) return;
  const list = data.standbys;
  set(byId("waiting-none"), !data.standbys_are_known ? "The place of the election has not said lately who waits." : list.length ? "" : "None says that it waits. Masters of releases before this one wait without saying so.");
  byId("waiting-none").hidden = data.standbys_are_known && list.length > 0;
  byId("waiting-table").hidden = list.length === 0;
  keyed(byId("waiting"), list, one => one.address, () => {
    const row = document.createElement("tr");
    add(row, "td", "", "name");
    for (const label of ["", "", "waits", "heard"]) { const cell = add(row, "td", "", label ? "number" : "name"); if (label) cell.dataset.label = label; }
    return row;
  }, (row, one) => [reached(one.address), one.name, one.build, duration(Math.max(0, data.time_ms - one.since_ms) / 1000), (one.heard_ms / 1000).toFixed(1) + " s"].forEach((text, at) => set(row.children[at], text)));
}

/* ---- curves ---- */

const past = {hour: {series: null, last: 0, each: 10}, day: {series: null, last: 0, each: 120}};
const gauge = name => (s, i) => s[name][i];
/* What came between two samples of one leadership, by the second. */
const growth = name => (s, i) => i === 0 || typeof s[name]?.[i] !== "number" || typeof s[name][i - 1] !== "number" || s.epoch[i] !== s.epoch[i - 1] || s[name][i] < s[name][i - 1] ? null : 1000 * (s[name][i] - s[name][i - 1]) / Math.max(1, s.wall_ms[i] - s.wall_ms[i - 1]);
function ratioOf(part, whole) {
  return (s, i) => { const all = growth(whole)(s, i); return all ? growth(part)(s, i) / all : null; };
}
const CHARTS = [
  {name: "memory used", value: (s, i) => s.capacity[i] ? s.used[i] / s.capacity[i] : null, text: percent, top: 1},
  {name: "found of what is looked for", value: ratioOf("lookup_hits", "lookups"), text: percent, top: 1},
  {name: "looked for", value: growth("lookups"), text: rate},
  {name: "put", value: growth("put_bytes"), text: value => size(value) + "/s"},
  {name: "found by gets", value: growth("get_hit_bytes"), text: value => size(value) + "/s"},
  {name: "evicted objects", value: growth("evicted_objects"), text: rate},
  {name: "longest turn of the master", value: gauge("longest_turn_us"), text: value => micro(Math.round(value))},
  {name: "segments", value: gauge("segments"), text: count},
  {name: "puts without room", value: growth("allocation_failures"), text: rate},
  {name: "disks used", value: (s, i) => s.disk_capacity[i] ? s.disk_used[i] / s.disk_capacity[i] : null, text: percent, top: 1, isOptional: true},
];
const WIDTH = 300, HEIGHT = 84;

function svg(parent, name, attributes) {
  const element = document.createElementNS(byId("curve").namespaceURI, name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  parent.append(element);
  return element;
}

function makeChart(chart) {
  const figure = add(byId("charts"), "figure", undefined, "chart"), caption = add(figure, "figcaption");
  chart.figure = figure;
  add(caption, "span", chart.name);
  chart.now = add(caption, "b");
  chart.svg = svg(figure, "svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", tabindex: 0});
  const foot = add(figure, "figcaption");
  chart.from = add(foot, "span"); chart.most = add(foot, "span");
  chart.at = null; // the point that is shown; null: the last
  chart.svg.addEventListener("pointermove", event => point(chart, event.offsetX / chart.svg.clientWidth));
  chart.svg.addEventListener("pointerleave", () => point(chart, null));
  chart.svg.addEventListener("blur", () => point(chart, null));
  chart.svg.addEventListener("keydown", event => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight" || !chart.points) return;
    event.preventDefault();
    const last = chart.points.length - 1;
    chart.at = Math.max(0, Math.min(last, (chart.at === null ? last : chart.at) + (event.key === "ArrowLeft" ? -1 : 1)));
    showPoint(chart);
  });
}

function point(chart, part) {
  if (!chart.points || part === null) { chart.at = null; return showPoint(chart); }
  const time = chart.start + part * (chart.end - chart.start);
  chart.at = chart.points.reduce((best, one, i) => Math.abs(one.time - time) < Math.abs(chart.points[best].time - time) ? i : best, 0);
  showPoint(chart);
}

function showPoint(chart) {
  const points = chart.points || [], at = chart.at === null ? points.length - 1 : Math.min(chart.at, points.length - 1), one = points[at];
  const text = !one || one.value === null ? "–" : chart.text(one.value);
  set(chart.now, chart.at === null || !one ? text : text + " at " + clock(one.time));
  chart.svg.querySelector(".mark")?.remove();
  if (chart.at !== null && one) { const x = WIDTH * (one.time - chart.start) / (chart.end - chart.start); svg(chart.svg, "line", {x1: x, x2: x, y1: 0, y2: HEIGHT, class: "mark"}); }
}

function showChart(chart, series, span, each, end) {
  chart.points = series ? series.wall_ms.map((time, i) => ({time, value: chart.value(series, i)})).filter(one => one.time > end - span) : [];
  chart.end = end;
  chart.start = Math.max(end - span, Math.min(end - 300e3, ...chart.points.slice(0, 1).map(one => one.time))); // a young master's curves are not a dot at the edge
  span = end - chart.start;
  const values = chart.points.map(one => one.value).filter(value => value !== null), most = Math.max(...values, 0), top = chart.top || most * 1.08 || 1;
  const x = time => WIDTH * (time - chart.start) / span, y = value => HEIGHT - 2 - (HEIGHT - 6) * value / top;
  chart.svg.replaceChildren();
  svg(chart.svg, "line", {x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1, class: "grid"});
  let run = [];
  const flush = () => {
    if (run.length === 1) run.push({time: run[0].time + each * 500, value: run[0].value});
    if (run.length) {
      const line = run.map(one => x(one.time).toFixed(1) + "," + y(one.value).toFixed(1)).join(" ");
      svg(chart.svg, "polygon", {points: `${x(run[0].time).toFixed(1)},${HEIGHT} ${line} ${x(run[run.length - 1].time).toFixed(1)},${HEIGHT}`, class: "area"});
      svg(chart.svg, "polyline", {points: line, class: "line"});
    }
    run = [];
  };
  for (const one of chart.points) { // a hole where the master was away, or knew nothing
    if (one.value === null || run.length && one.time - run[run.length - 1].time > 4000 * each) flush();
    if (one.value !== null) run.push(one);
  }
  flush();
  set(chart.from, duration(span / 1000) + " ago");
  set(chart.most, values.length ? "most " + chart.text(most) : "nothing yet");
  chart.svg.setAttribute("aria-label", `${chart.name}: ${values.length ? `now ${chart.text(values[values.length - 1])}, most ${chart.text(most)}, least ${chart.text(Math.min(...values))}` : "nothing yet"}`);
  chart.figure.hidden = Boolean(chart.isOptional) && values.length === 0;
  showPoint(chart);
}

function showCharts() {
  const range = byId("range").value, kept = past[range], end = Date.now() - skew;
  for (const chart of CHARTS) showChart(chart, kept.series, range === "day" ? 86400e3 : 3600e3, kept.each * (kept.step || 1), end);
}

async function refreshHistory() {
  const range = byId("range").value, kept = past[range];
  const answer = await ask(`/api/v1/history?range=${range}&points=120&since=${kept.last}`);
  const fresh = answer.series;
  kept.each = answer.seconds_each;
  if (fresh.number && kept.last === 0) kept.step = answer.step;
  if (fresh.number) {
    kept.last = fresh.number[fresh.number.length - 1];
    if (kept.series) for (const name in kept.series) kept.series[name] = kept.series[name].concat(fresh[name] || fresh.number.map(() => null)).slice(-SAMPLES_KEPT);
    else kept.series = fresh;
  }
  showCharts();
}

/* ---- nodes ---- */

let offset = 0, found = 0;
const TAGS = {OK: "ok", DRAINED: "warn", DRAINING: "warn", UNMOUNTING: "warn", SUSPECT: "bad", ABSENT: "bad"};

function makeNode(node) {
  const row = document.createElement("tr");
  add(row, "td", "", "name");
  add(add(row, "td"), "span", "", "tag");
  for (const label of ["objects", "used", "largest piece", "heard", "here since", "disks"]) add(row, "td", "", label === "used" ? "wide-cell" : label === "disks" ? "" : "number").dataset.label = label;
  const used = add(row.children[3], "div", undefined, "used");
  addBar(used); add(used, "span");
  delete row.children[3].dataset.label;
  const button = add(add(row, "td"), "button");
  button.addEventListener("click", () => confirmDrain(!row.isDraining, row.names));
  return row;
}

function updateNode(row, node) {
  const cells = row.children, use = node.capacity_bytes ? node.used_bytes / node.capacity_bytes : 0;
  row.names = node.segment_names;
  row.isDraining = node.state === "DRAINING" || node.state === "DRAINED";
  set(cells[0], node.name + (node.segments > 1 ? ` (${node.segments} segments)` : ""));
  cells[0].title = `${node.id}\n${node.address}\n${node.build}`;
  set(cells[1].firstChild, node.is_recovering ? "TAKEN IN" : node.state);
  setClass(cells[1].firstChild, "tag " + (node.is_recovering ? "warn" : TAGS[node.state] || "warn"));
  set(cells[2], count(node.objects));
  setBar(cells[3].firstChild.firstChild, use, `${node.name}: ${percent(use)} used`, use > .97);
  set(cells[3].firstChild.lastChild, `${size(node.used_bytes)} of ${size(node.capacity_bytes)}`);
  set(cells[4], size(node.largest_free_bytes));
  set(cells[5], node.segments ? (node.heard_ms / 1000).toFixed(1) + " s" : "–");
  set(cells[6], node.segments ? duration(node.mounted_seconds) : "–");
  set(cells[7], node.disks ? `${node.disks}${node.disks_ill ? ", " + node.disks_ill + " ail" : ""}, ${size(node.disk_used_bytes)}` : "");
  set(cells[8].firstChild, row.isDraining ? "take back" : "drain…");
  cells[8].firstChild.setAttribute("aria-label", (row.isDraining ? "take back the drain of " : "drain ") + node.name);
  cells[8].firstChild.hidden = node.segment_names.length === 0;
}

async function refreshNodes() {
  const query = `sort=${byId("sort").value}&limit=${PAGE}&offset=${offset}&find=${encodeURIComponent(byId("find").value)}`;
  const answer = await ask("/api/v1/nodes?" + query);
  found = answer.found;
  if (offset >= found && offset > 0) { offset = Math.max(0, PAGE * Math.floor((found - 1) / PAGE)); return refreshNodes(); }
  keyed(byId("nodes"), answer.nodes, node => node.id, makeNode, updateNode);
  set(byId("place"), found === 0 ? "none" : `${count(offset + 1)} to ${count(offset + answer.nodes.length)} of ${count(found)}`);
  byId("previous").disabled = offset === 0;
  byId("next").disabled = offset + PAGE >= found;
}

function turnPage(step) {
  if (offset + step < 0 || offset + step >= found) return;
  offset += step;
  refreshNodes().catch(sayFailed);
}

/* ---- drains ---- */

let wish = null;
function confirmDrain(isDrain, segments, why) {
  wish = {isDrain, segments};
  const name = segments.join(", ");
  set(byId("confirm-title"), isDrain ? `Drain ${name}?` : `Let ${name} take objects again?`);
  set(byId("confirm-text"), why || (isDrain ? "It takes nothing new, and its objects are moved to other nodes, where these have room. They stay readable." : "What was moved stays where it is."));
  byId("confirm-key").hidden = !why;
  setClass(byId("confirm-yes"), isDrain ? "danger" : "");
  byId("confirm").returnValue = "no";
  byId("confirm").showModal();
  (why ? byId("bearer") : byId("confirm-no")).focus();
}

async function carryOut() {
  if (byId("confirm").returnValue !== "yes" || !wish) return;
  const {isDrain, segments} = wish;
  if (!byId("confirm-key").hidden) bearer = byId("bearer").value.trim();
  byId("bearer").value = "";
  try {
    await ask(isDrain ? "/api/v1/drain_jobs" : "/api/v1/undrain", {segments});
    await refresh();
  } catch (error) {
    if (error.status === 401 || error.status === 403) { bearer = ""; confirmDrain(isDrain, segments, error.message); } else sayFailed(error);
  }
}

/* ---- keys ---- */

function showKey(data) {
  const answer = byId("answer"), table = document.createElement("table");
  answer.replaceChildren();
  const head = add(answer, "p");
  add(head, "b", data.key);
  if (data.is_there) {
    head.append(": " + size(data.bytes) + (data.firm_pin_ms ? `, pinned firmly for ${duration(Math.ceil(data.firm_pin_ms / 1000))}` : ""));
    for (const replica of data.replicas) {
      const row = add(table, "tr");
      add(row, "td", replica.node, "name"); add(row, "td", replica.address); add(row, "td", replica.is_on_disk ? "disk" : "memory"); add(row, "td", replica.state);
    }
    answer.append(table);
  } else {
    head.append(" is not there: " + data.reason.replaceAll("_", " ") + (data.most_seconds_ago ? `, ${duration(data.least_seconds_ago)} to ${duration(data.most_seconds_ago)} ago` : ""));
  }
}

async function listKeys(prefix, cursor) {
  const answer = byId("answer"), page = await ask(`/api/v1/keys?limit=50&prefix=${encodeURIComponent(prefix)}` + (cursor ? "&cursor=" + cursor : ""));
  if (!cursor) { answer.replaceChildren(); add(answer, "table"); }
  answer.querySelector(".more")?.remove();
  for (const one of page.keys) {
    const row = add(answer.querySelector("table"), "tr");
    add(row, "td", one.key, "name"); add(row, "td", size(one.bytes), "number");
  }
  if (page.cursor) add(answer, "button", page.keys.length ? "more" : "none here; look on", "more").addEventListener("click", () => listKeys(prefix, page.cursor).catch(sayAnswer));
  else if (!answer.querySelector("tr")) sayAnswer(new Error("There is none."));
}

function sayAnswer(error) { byId("answer").replaceChildren(); add(byId("answer"), "p", error.message); }

/* ---- hits and misses ---- */

/* What an LRU of that much memory would have found; a line where we are. */
function showCurve(curve) {
  const points = curve.points.filter(one => one.hit_ratio !== null), picture = byId("curve");
  picture.replaceChildren();
  if (points.length < 2) return;
  const most = points[points.length - 1].bytes, top = Math.max(.1, ...points.map(one => one.hit_ratio));
  const x = bytes => 44 + 536 * bytes / most, y = ratio => 172 - 158 * ratio / top;
  svg(picture, "line", {x1: 44, y1: 172, x2: 580, y2: 172, class: "grid"});
  svg(picture, "line", {x1: x(curve.capacity_bytes), y1: 10, x2: x(curve.capacity_bytes), y2: 172, class: "mark"});
  svg(picture, "polyline", {points: points.map(one => x(one.bytes) + "," + y(one.hit_ratio)).join(" "), class: "line"});
  for (const ratio of [0, top / 2, top]) svg(picture, "text", {x: 0, y: y(ratio) + 4}).textContent = (100 * ratio).toFixed(0) + " %";
  for (const bytes of [curve.capacity_bytes, most]) svg(picture, "text", {x: x(bytes), y: 192, "text-anchor": bytes === most ? "end" : "middle"}).textContent = size(bytes);
}

async function refreshMisses() {
  const data = (await ask("/api/v1/misses")).data;
  byId("misses-part").hidden = data.lookups === 0;
  if (data.lookups === 0) return;
  set(byId("found"), `${percent(data.hits / data.lookups)} of ${count(data.lookups)} keys that were looked for were found` + (data.curve.hit_ratio === null ? "" : `, ${percent(data.curve.hit_ratio)} lately`) + ". By the use of keys, memory of other sizes would have found:");
  showCurve(data.curve);
  set(byId("advice"), data.advice.map(step => step.text).join("; "));
  showParts(byId("misses"), data.misses);
  showSpans(byId("reuse"), data.reuse_seconds);
}

/* ---- slow calls ---- */

const lasted = ms => ms < 1000 ? ms + " ms" : ms < 120000 ? (ms / 1000).toFixed(1) + " s" : duration(ms / 1000);

async function refreshSlow() {
  const answer = await ask("/api/v1/slow?limit=20"), list = [...answer.open.map(one => ({...one, isOpen: true})), ...answer.calls];
  byId("slow-part").hidden = list.length === 0;
  keyed(byId("slow"), list, one => [one.isOpen, one.time_ms, one.ms * !one.isOpen, one.tenant, one.key, one.client, one.address].join("\n"), () => {
    const row = document.createElement("tr");
    add(row, "td", "", "name"); add(row, "td");
    for (const label of ["took", "", "by", "tenant", "at"]) add(row, "td", "", label === "took" || label === "at" ? "number" : label === "by" ? "name" : "").dataset.label = label;
    add(row.children[3], "span", "", "tag");
    return row;
  }, (row, one) => {
    const by = one.client ? one.client + (one.address ? " " + one.address : "") : "one that has gone";
    [one.key + (one.key_is_cut ? "…" : ""), one.kind.replace("_", " "), lasted(one.ms), null, by, one.tenant === "default" ? "" : one.tenant, one.isOpen ? "now" : clock(one.time_ms)]
      .forEach((text, at) => { if (text !== null) set(row.children[at], text); });
    set(row.children[3].firstChild, one.isOpen ? "open, " + size(one.bytes) : one.result);
    setClass(row.children[3].firstChild, "tag " + (one.isOpen ? "warn" : one.result === "OK" ? "ok" : "bad"));
  });
}

/* ---- tenants ---- */

async function refreshTenants() {
  const answer = (await ask("/api/v1/tenant_quotas")).data, list = Array.isArray(answer) ? answer : [];
  byId("tenants-part").hidden = list.length === 0;
  keyed(byId("tenants"), list, one => one.tenant_id, () => {
    const row = document.createElement("tr");
    add(row, "td", "", "name"); for (let i = 0; i < 3; i++) add(row, "td", "", "number"); addBar(add(row, "td"));
    return row;
  }, (row, one) => {
    const most = one.effective_quota_bytes || 0, use = most ? one.charged_bytes / most : 0;
    [one.tenant_id, count(one.charged_objects), size(one.charged_bytes), most ? size(most) : "none"].forEach((text, at) => set(row.children[at], text));
    setBar(row.children[4].firstChild, use, percent(use) + " of its quota", use > .97);
  });
}

/* ---- events ---- */

let events = [], lastEvent = 0;
async function refreshEvents() {
  const answer = await ask("/api/v1/events" + (lastEvent ? "?limit=200&since=" + lastEvent : "?limit=100"));
  if (answer.last < lastEvent) { events = []; lastEvent = 0; return refreshEvents(); } // another master, or it began anew
  if (answer.events.length === 0) return;
  lastEvent = answer.events[answer.events.length - 1].number;
  for (const event of answer.events) {
    if (events.length && event.count > 1 && events[events.length - 1].text === event.text) events.pop();
    events.push(event);
  }
  events = events.slice(-EVENTS_KEPT);
  for (const kind of new Set(events.map(event => event.kind)))
    if (![...byId("kind").options].some(option => option.value === kind)) add(byId("kind"), "option", kind).value = kind;
  showEvents();
}

function showEvents() {
  const kind = byId("kind").value, shown = events.filter(event => !kind || event.kind === kind).reverse();
  keyed(byId("events"), shown, event => String(event.number), event => {
    const row = document.createElement("li"), when = add(row, "time", clock(event.time_ms));
    when.dateTime = new Date(event.time_ms).toISOString();
    when.title = new Date(event.time_ms).toLocaleString();
    add(row, "span", event.kind, "kind");
    add(row, "span", event.text + (event.count > 1 ? ` (${event.count} times)` : ""));
    row.className = event.level;
    return row;
  }, () => {});
}

/* ---- the round ---- */

let isPaused = false, turn = 0, timer = 0, skew = 0, isAsking = false;
function sayFailed(error) {
  set(byId("state"), "No answer: " + error.message + ". What is below is old.");
  setClass(byId("state"), "bad");
}

/* One that listens on all addresses tells none: it is where this page is from. */
const reached = address => address.replace(/^(0\.0\.0\.0|\[::\]):/, location.hostname + ":");

function showState(data) {
  const who = data.role === "leader" ? `leader, clients connect to ${reached(data.leader_address)}` : `standby; ${data.leader_address ? "the leader is " + data.leader_address : "nobody leads"}`;
  set(byId("state"), `${who}; ${data.build}; up ${duration(data.uptime_seconds)}${isPaused ? "; paused" : ""}; seen ${clock(Date.now())}`);
  setClass(byId("state"), "");
  byId("leader-part").hidden = !data.is_ready;
  showWaiting(data);
  byId("standby-part").hidden = data.is_ready;
  if (!data.is_ready) {
    set(byId("standby"), data.leader_address ? `It is well, and knows nothing of objects: ask the leader, ${data.leader_address}.` : "Nobody leads now: a master is being elected, or the election cannot be reached.");
    byId("troubles").replaceChildren();
  }
}

async function refresh() {
  if (isAsking) return;
  isAsking = true;
  try {
    const data = (await ask("/api/v1/overview")).data;
    skew = Date.now() - data.time_ms;
    showState(data);
    const slowly = turn++ % SLOW_TURNS === 0, work = [refreshEvents()];
    if (data.is_ready) {
      showNow(data);
      work.push(refreshNodes());
      if (slowly) work.push(refreshHistory(), refreshMisses(), refreshSlow());
      if (slowly && data.has_tenants) work.push(refreshTenants());
    }
    await Promise.all(work);
  } catch (error) {
    sayFailed(error);
  } finally {
    isAsking = false;
    document.body.dataset.turns = turn; // for tests: so many rounds are shown
  }
}

function again() {
  clearTimeout(timer);
  timer = setTimeout(async () => { if (!isPaused) await refresh(); again(); }, document.hidden ? HIDDEN_MS : PERIOD_MS);
}

/* ---- what people do ---- */

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme;
  set(byId("theme"), name || "theme");
  try { if (name) localStorage.setItem("theme", name); else localStorage.removeItem("theme"); } catch { /* then for this page */ }
}
function nextTheme() {
  const order = ["", "dark", "light"];
  setTheme(order[(order.indexOf(document.documentElement.dataset.theme || "") + 1) % order.length]);
}
function togglePause() {
  isPaused = !isPaused;
  byId("pause").setAttribute("aria-pressed", String(isPaused));
  set(byId("pause"), isPaused ? "go on" : "pause");
  if (!isPaused) refresh();
}
const KEYS = {"/": () => byId("find").focus(), k: () => byId("key").focus(), p: togglePause, t: nextTheme, "?": () => byId("keys").showModal(), "[": () => turnPage(-PAGE), "]": () => turnPage(PAGE)};
document.addEventListener("keydown", event => {
  const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName) || document.querySelector("dialog[open]");
  if (isTyping || event.ctrlKey || event.altKey || event.metaKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});
byId("pause").addEventListener("click", togglePause);
byId("theme").addEventListener("click", nextTheme);
byId("help").addEventListener("click", KEYS["?"]);
byId("range").addEventListener("change", () => { showCharts(); refreshHistory().catch(sayFailed); });
byId("kind").addEventListener("change", showEvents);
byId("previous").addEventListener("click", () => turnPage(-PAGE));
byId("next").addEventListener("click", () => turnPage(PAGE));
byId("nodes-form").addEventListener("submit", event => event.preventDefault());
for (const name of ["find", "sort"]) byId(name).addEventListener("input", () => { offset = 0; refreshNodes().catch(sayFailed); });
byId("look").addEventListener("submit", event => {
  event.preventDefault();
  ask("/api/v1/key?key=" + encodeURIComponent(byId("key").value)).then(answer => showKey(answer.data)).catch(sayAnswer);
});
byId("list").addEventListener("click", () => listKeys(byId("key").value, "").catch(sayAnswer));
byId("confirm").addEventListener("close", carryOut);
document.addEventListener("visibilitychange", () => { if (!document.hidden && !isPaused) refresh(); again(); });
try { setTheme(localStorage.getItem("theme") || ""); } catch { setTheme(""); }
CHARTS.forEach(makeChart);
refresh();
again();
