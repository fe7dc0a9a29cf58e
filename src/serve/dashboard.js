"use strict";
// Reads /history once, then follows /events. All strings from the server are set as text, never as HTML.
(function () {
  const STAGES = ["parse", "tokenize", "queue", "infer", "write"];
  const KEEP = 900; // seconds of history
  const history = [];
  const pointer = {}; // x position of the pointer in each plot of lines
  let stopping = null, adminResult = "", shownSeconds = KEEP;

  const byId = (id) => document.getElementById(id);
  function make(tag, options, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(options || {})) {
      if (name === "text") node.textContent = value;
      else if (name === "width") node.style.width = value;
      else node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }
  function draw(tag, attributes, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }
  const fill = (id, ...nodes) => byId(id).replaceChildren(...nodes);
  const known = (value) => value !== null && value !== undefined;
  function number(value, digits) {
    if (!known(value)) return "–";
    if (digits === undefined) digits = Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0;
    return value.toLocaleString("en", { maximumFractionDigits: digits });
  }
  const percent = (share) => (known(share) ? number(share * 100, 1) + " %" : "–");
  function bytes(value) {
    if (!known(value)) return "–";
    const units = ["B", "KiB", "MiB", "GiB"];
    let unit = 0;
    while (value >= 1024 && unit < 3) { value /= 1024; unit++; }
    return number(value, unit > 1 ? 1 : 0) + " " + units[unit];
  }
  function duration(seconds) {
    if (!known(seconds)) return "–";
    if (seconds < 60) return number(seconds, 0) + " s";
    if (seconds < 3600) return number(seconds / 60, 0) + " min";
    if (seconds < 86400) return number(seconds / 3600, 1) + " h";
    return number(seconds / 86400, 1) + " d";
  }
  const clock = (ms, zone) => new Date(ms).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(zone ? { timeZone: zone } : {}) });
  const figure = (value, label) => make("div", { class: "figure" }, make("b", { text: value }), make("span", { text: label }));
  const figures = (...all) => make("div", { class: "figures" }, ...all);
  const plotWidth = (id) => Math.max(240, byId(id).clientWidth);  // drawn at scale 1, so that the font size stays constant
  const note = (text) => make("div", { class: "note", text });

  function table(head, rows, empty) {
    if (rows.length === 0) return note(empty);
    const cell = (tag, value, numeric) => {
      const node = make(tag, numeric ? { class: "n" } : {});
      if (value instanceof Node) node.append(value);
      else node.textContent = value;
      return node;
    };
    const numeric = head.map((name) => name.startsWith("#"));
    return make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, ...head.map((name, i) => cell("th", name.replace("#", ""), numeric[i])))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((value, i) => {
        const node = cell("td", value, numeric[i]);
        node.dataset.label = head[i].replace("#", "");  // shown in front of the value on narrow screens
        return node;
      }))))));
  }
  function bar(name, caption, parts) {
    return make("div", { class: "bar" },
      make("div", { class: "caption" }, make("b", { text: name }), make("span", { text: caption })),
      make("div", { class: "track" }, ...parts.map(([share, color]) =>
        make("i", { class: color, width: Math.max(0, Math.min(1, share || 0)) * 100 + "%" }))));
  }
  function legend(names) {
    return make("div", {}, ...names.map((name, i) => make("span", { class: "key" }, make("i", { class: "c" + i }), name)));
  }

  // Lines over the selected time span. Each series is [seconds ago, value]; unknown values leave gaps. Under the pointer,
  // a vertical line and the values by name.
  function lines(id, series, unit, names) {
    const W = plotWidth(id), H = 150, left = 44, bottom = 18, top = 8;
    const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, class: "lines", role: "img", "aria-label": unit });
    let most = 0, span = 60;
    for (const points of series) for (const [ago, value] of points) {
      if (known(value)) most = Math.max(most, value);
      span = Math.max(span, ago);
    }
    most = most > 0 ? most * 1.1 : 1;
    const x = (ago) => left + (W - left - 4) * (1 - ago / span);
    const y = (value) => top + (H - top - bottom) * (1 - value / most);
    for (const share of [0, 0.5, 1]) {
      const at = y(most * share / 1.1);
      svg.append(draw("line", { x1: left, x2: W - 4, y1: at, y2: at, class: "grid" }),
        draw("text", { x: left - 5, y: at + 3, "text-anchor": "end" }, number(most * share / 1.1)));
    }
    svg.append(draw("text", { x: left, y: H - 4 }, "−" + duration(span)), draw("text", { x: W - 4, y: H - 4, "text-anchor": "end" }, unit));
    series.forEach((points, i) => {
      let path = "", pen = false;
      for (const [ago, value] of points) {
        if (!known(value)) { pen = false; continue; }
        path += (pen ? "L" : "M") + x(ago).toFixed(1) + " " + y(value).toFixed(1);
        pen = true;
      }
      svg.append(draw("path", { d: path || "M0 0", class: "l" + i }));
    });
    const mark = draw("g", { class: "mark" });
    svg.append(mark);
    const showAt = (at) => {
      mark.replaceChildren();
      if (!known(at) || series[0].length === 0) return;
      const nearest = series[0].reduce((best, [ago], i) => (Math.abs(x(ago) - at) < Math.abs(x(series[0][best][0]) - at) ? i : best), 0);
      const ago = series[0][nearest][0], px = x(ago), right = px < W / 2;
      const values = series.map((points, i) => (names[i] ? names[i] + " " : "") + number(points[nearest][1])).join(" · ");
      mark.append(draw("line", { x1: px, x2: px, y1: top, y2: H - bottom, class: "now" }),
        draw("text", { x: px + (right ? 5 : -5), y: top + 9, "text-anchor": right ? "start" : "end" }, `${values} ${unit}, ${duration(ago)} ago`));
    };
    showAt(pointer[id]);
    svg.addEventListener("mousemove", (event) => showAt(pointer[id] = (event.clientX - svg.getBoundingClientRect().left) * W / svg.clientWidth));
    svg.addEventListener("mouseleave", () => { delete pointer[id]; showAt(); });
    return svg;
  }
  // Stacked bars of buckets {le, counts}; the bucket without `le` counts everything above.
  function histogram(id, buckets, unit) {
    const W = plotWidth(id), H = 150, left = 44, bottom = 18, top = 18;
    const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": unit });
    const seen = buckets.map((b) => b.counts.reduce((a, c) => a + c, 0));
    const first = Math.max(0, seen.findIndex((n) => n > 0) - 1);
    const end = Math.min(buckets.length, buckets.length - [...seen].reverse().findIndex((n) => n > 0) + 1);
    const shown = buckets.slice(first, Math.max(end, first + 8)), most = Math.max(1, ...seen);
    const step = (W - left - 4) / shown.length;
    svg.append(draw("line", { x1: left, x2: W - 4, y1: H - bottom, y2: H - bottom, class: "grid" }),
      draw("text", { x: left - 5, y: top + 8, "text-anchor": "end" }, number(most)));
    shown.forEach((bucket, i) => {
      let base = H - bottom;
      bucket.counts.forEach((count, s) => {
        const height = (H - bottom - top) * count / most;
        base -= height;
        svg.append(draw("rect", { x: left + i * step + 1, y: base, width: Math.max(1, step - 2), height, class: "f" + s }));
      });
      const digits = bucket.le < 1 ? 2 : bucket.le < 10 ? 1 : 0;
      if (i % Math.ceil(shown.length * 52 / (W - left)) === 0 && left + i * step + 48 < W)
        svg.append(draw("text", { x: left + i * step, y: H - 4 }, known(bucket.le) ? "≤ " + number(bucket.le, digits) : "above"));
    });
    svg.append(draw("text", { x: W - 4, y: 11, "text-anchor": "end" }, unit));
    return svg;
  }
  // Today's schedule as a band, with the current time, in the schedule's time zone.
  function band(id, ladder, now) {
    const W = plotWidth(id), H = 46, svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "today's schedule" });
    const from = ladder.today[0].from_unix, to = ladder.today[ladder.today.length - 1].to_unix;
    const x = (t) => W * (t - from) / (to - from);
    const names = ladder.rungs.map((rung) => rung.model);
    for (const span of ladder.today) {
      const width = Math.max(1, x(span.to_unix) - x(span.from_unix) - 1);
      svg.append(draw("rect", { x: x(span.from_unix), y: 2, width, height: 22, rx: 3, class: "f" + Math.max(0, names.indexOf(span.rung)) % 5 }));
      if (width > 32) svg.append(draw("text", { x: x(span.from_unix) + 1, y: 36 }, clock(span.from_unix * 1000, ladder.zone)));
      if (width > 8 * span.rung.length) {
        const name = draw("text", { x: x(span.from_unix) + 5, y: 17 }, span.rung);
        name.style.fill = "var(--panel)";
        svg.append(name);
      }
    }
    const at = x(now / 1000);
    svg.append(draw("line", { x1: at, x2: at, y1: 0, y2: 26, class: "now" }), draw("text", { x: Math.min(at + 3, W - 24), y: 44 }, "now"));
    return svg;
  }

  function series(path) {
    const end = history.length > 0 ? history[history.length - 1].t_unix_ms : 0;
    return history.filter((moment) => end - moment.t_unix_ms <= shownSeconds * 1000).map((moment) => {
      let value = moment;
      for (const part of path.split(".")) value = known(value) ? value[part] : null;
      return [(end - moment.t_unix_ms) / 1000, value];
    });
  }

  function showHead(s) {
    const kind = s.state === "ok" || s.state === "ready" ? "ok" : s.state === "degraded" || s.state === "loading" || s.state === "draining" ? "warn" : "bad";
    const pills = [make("span", { class: "pill " + kind, text: s.state }), make("span", { class: "pill", text: s.reason === "default" ? s.model : s.model + " · " + s.reason }),
      make("span", { class: "pill", text: "up " + duration(s.uptime_s) })];
    if (s.warnings.length > 0) pills.push(make("span", { class: "pill warn", text: s.warnings.length + (s.warnings.length > 1 ? " warnings" : " warning") }));
    fill("head", ...pills);
    document.title = "brim · " + s.model + " · " + s.state;
  }
  function showLive(s) {
    fill("live", figures(figure(number(s.rates.texts_s), "texts/s"), figure(number(s.rates.tokens_s), "tokens/s"), figure(number(s.rates.requests_s), "requests/s")),
      lines("live", [series("rates.texts_s"), series("rates.requests_s")], "per second", ["texts", "requests"]), legend(["texts/s", "requests/s"]),
      note(`${number(s.totals.texts, 0)} texts in ${number(s.totals.requests, 0)} requests since start`));
  }
  function showDevice(s) {
    const d = s.device, m = d.memory, gpu = d.gpu || {}, limit = m.limit || m.held || 1, parts = [];
    Object.values(m.tags || {}).forEach((size, i) => parts.push([size / limit, "c" + i % 5]));
    fill("device",
      bar("Memory", `${bytes(m.held)} used, ${bytes(m.planned)} planned, ${bytes(m.limit)} limit`, parts.length > 0 ? parts : [[m.held / limit, "c0"]]),
      legend(Object.keys(m.tags || {}).slice(0, 5)), note("planned: all loaded models, shared memory counted once"),
      bar("Device busy", percent(d.busy), [[d.busy, "c1"]]), bar("MFU", percent(d.mfu), [[d.mfu, "c3"]]),
      figures(figure(known(gpu.temperature_c) ? number(gpu.temperature_c, 0) + " °C" : "–", "temperature"), figure(known(gpu.power_w) ? number(gpu.power_w, 0) + " W" : "–", "power"),
        figure(known(gpu.sm_clock_mhz) ? number(gpu.sm_clock_mhz, 0) + " MHz" : "–", "clock")), note(d.name || ""));
  }
  function showLatency(s) {
    const l = s.latency_ms;
    fill("latency", figures(figure(number(l.p50), "p50 ms"), figure(number(l.p95), "p95 ms"), figure(number(l.p99), "p99 ms")),
      lines("latency", [series("latency_ms.p50"), series("latency_ms.p95"), series("latency_ms.p99")], "ms", ["p50", "p95", "p99"]), legend(["p50", "p95", "p99"]));
    // Number of requests by latency and slowest stage.
    const stacks = l.buckets.map((b) => ({ le: b.le_ms, counts: STAGES.map((stage) => b.stages[stage] || 0) }));
    fill("stages", histogram("stages", stacks, "ms, last 15 min"), legend(STAGES));
  }
  function showQueue(s) {
    const q = s.queue, share = known(q.limit_ms) && q.limit_ms > 0 ? q.wait_ms / q.limit_ms : 0;
    fill("waiting", bar("Wait", `${number(q.wait_ms)} of ${number(q.limit_ms)} ms`, [[share, share > 0.8 ? "c2" : "c0"]]),
      figures(figure(number(q.tokens.interactive), "interactive tokens"), figure(number(q.tokens.bulk), "bulk tokens")),
      figures(figure(number(q.rejected), "rejected"), figure(number(q.cancelled), "cancelled"), figure(number(q.late), "deadline missed")), lines("waiting", [series("queue.wait_ms")], "ms", ["wait"]));
  }
  // With an API key, offers to load and park models; the server checks the key's scope.
  async function administer(model, verb) {
    try {
      const path = model.split("/").map(encodeURIComponent).join("/");
      const response = await fetch(`/admin/models/${path}/${verb}`, { method: "POST", headers: headers() });
      const answer = await response.json();
      adminResult = `${verb} ${model}: ${response.ok ? answer.state : answer.error}`;
    } catch (error) { adminResult = `${verb} ${model}: ${error.message}`; }
  }
  function adminButton(m) {
    const verb = m.state === "loading" ? "" : m.state !== "resident" ? "load" : known(m.bytes) ? "park" : "";
    if (verb === "") return "";
    const button = make("button", { type: "button", text: verb });
    button.addEventListener("click", () => { button.blur(); administer(m.id, verb); });
    return button;
  }
  function showModels(s) {
    if (document.querySelector("#models button:active, #models button:focus-visible")) return;  // keep a pressed or focused button
    const hasKey = byId("key").value !== "", adapts = s.models.some((m) => m.base);
    fill("models", table(["model", ...(adapts ? ["base"] : []), "state", "precision", "#own memory", "#tokens per batch", "#texts/s", "#p99 ms", "#keep-alive", ...(hasKey ? [""] : [])], s.models.map((m) =>
      [m.id, ...(adapts ? [m.base || "–"] : []), m.state, m.precision === "exact" ? "rules" : m.precision || "–", bytes(m.bytes), number(m.token_budget, 0), number(m.texts_s), number(m.p99_ms),
        m.keep_alive_s < 0 ? "never" : duration(m.keep_alive_s), ...(hasKey ? [adminButton(m)] : [])]), "no models"), note(adminResult));
  }
  function showLadders(s) {
    if (s.ladders.length === 0) return fill("ladders", note("no ladders"));
    fill("ladders", ...s.ladders.map((ladder) => {
      const box = make("div", {}, make("div", { class: "rungs" }, make("b", { text: ladder.name }), ...ladder.rungs.map((rung) =>
        make("span", { class: "pill" + (rung.model === ladder.active ? " lit" : rung.available ? "" : " bad"), text: rung.model + (rung.spilling ? " ↓" : "") }))));
      if (ladder.today.length > 0) box.append(band("ladders", ladder, s.t_unix_ms));
      const next = known(ladder.next_change_unix) ? ` · ${ladder.next} from ${clock(ladder.next_change_unix * 1000, ladder.zone)}` : "";
      box.append(note(`${ladder.active || "no model"} (${ladder.reason})${ladder.market ? " · market " + ladder.market : ""}${next}${ladder.zone ? " · times in " + ladder.zone : ""} · spilled ${percent(ladder.spill_share)}`),
        table(["rung", "gate", "why"], ladder.rungs.map((rung) => [rung.model, rung.gate, rung.fault || rung.why]), ""));
      return box;
    }));
  }
  function showBatches(s) {
    const b = s.batches, idle = Object.entries(b.idle || {}), tokens = b.tokens || [];
    const counted = tokens.length > 0 ? [histogram("batches", tokens.map((t) => ({ le: t.le, counts: [t.batches] })), "tokens of batches, last 15 min")] : [];
    fill("batches", figures(figure(number(b.mean_tokens, 0), "tokens per batch"), figure(number(b.batches_s), "batches/s"), figure(number(b.batches, 0), "batches since start")),
      ...counted, bar("Batch fill", percent(b.fill), [[b.fill, "c0"]]), bar("CUDA graphs", percent(b.graph_share), [[b.graph_share, "c1"]]),
      bar("Idle", percent(idle.length > 0 ? idle.reduce((sum, [, share]) => sum + share, 0) : null), idle.map(([, share], i) => [share, "c" + i % 5])),
      legend(idle.map(([cause, share]) => `${cause.replaceAll("_", " ")} ${percent(share)}`)));
  }
  function showWork(s) {
    fill("queues", table(["queue", "model", "#waiting", "#oldest", "#unread flushes", "state"], s.queues.map((q) =>
      [q.queue, q.model, number(q.queued, 0), known(q.oldest_ms) ? duration(q.oldest_ms / 1000) : "–", number(q.unseen_flushes, 0), q.read_only ? "read-only" : "open"]), "no queues"));
    fill("jobs", table(["job", "model", "status", "progress", "#rows", "#failed", "#rows/s", "#time left"], s.jobs.map((j) => {
      const track = make("div", { class: "bar" }, make("div", { class: "track" }, make("i", { class: "c0", width: (j.progress || 0) * 100 + "%" })));
      return [j.id, j.model || "–", j.waiting ? `waiting: ${j.waiting}` : j.status, track, number(j.request_counts.completed, 0), number(j.request_counts.failed, 0),
        number(j.rows_per_second), duration(j.seconds_left)];
    }), "no jobs"));
  }
  function showEvents(s) {
    const items = s.warnings.map((text) => make("li", { class: "warn", text }));
    for (const event of s.switches) items.push(make("li", { text: `${clock(event.t_unix_ms)} ${event.text}` }));
    fill("events", items.length > 0 ? make("ul", {}, ...items.slice(0, 20)) : note("no events"));
  }

  function show(s) {
    history.push(s);
    while (history.length > 0 && s.t_unix_ms - history[0].t_unix_ms > KEEP * 1000) history.shift();
    render(s);
  }
  function render(s) {
    for (const part of [showHead, showLive, showDevice, showLatency, showQueue, showModels, showLadders, showBatches, showWork, showEvents]) part(s);
    document.documentElement.dataset.shown = String(history.length);
  }
  function showError(reason) {
    fill("head", make("span", { class: "pill bad", text: "no response from the server: " + reason }));
  }

  function headers() {
    const key = byId("key").value;
    return key ? { Authorization: "Bearer " + key } : {};
  }
  async function read(path) {
    const response = await fetch(path, { headers: headers(), cache: "no-store" });
    if (!response.ok) throw new Error(response.status + " " + response.statusText);
    return response.json();
  }
  // Parses one event: lines up to an empty line. EventSource is not used because it cannot send an API key.
  function handleEvent(event) {
    const field = (name) => (event.split("\n").find((line) => line.startsWith(name + ": ")) || "").slice(name.length + 2);
    if (field("event") === "snapshot") show(JSON.parse(field("data")));
  }
  async function follow() {
    for (;;) {
      try {
        stopping = new AbortController();
        if (history.length === 0) for (const moment of await read("/history?minutes=15")) history.push(moment);
        const response = await fetch("/events", { headers: headers(), cache: "no-store", signal: stopping.signal });
        if (!response.ok) throw new Error(response.status + " " + response.statusText);
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        let text = "";
        for (;;) {
          const piece = await reader.read();
          if (piece.done) throw new Error("connection closed");
          text += piece.value;
          for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) handleEvent(text.slice(0, end));
        }
      } catch (error) { showError(error.message); }
      await new Promise((done) => setTimeout(done, 1000));
    }
  }
  async function tryText() {
    const text = byId("text").value, started = performance.now();
    const body = JSON.stringify({ input: text });
    try {
      const response = await fetch("/classify", { method: "POST", headers: { "Content-Type": "application/json", ...headers() }, body });
      const answer = await response.text();
      byId("answer").textContent = `${answer}\n${number(performance.now() - started)} ms in the browser; ${response.headers.get("Server-Timing") || ""}\n` +
        `${response.headers.get("X-Brim-Model") || ""} ${response.headers.get("X-Brim-Reason") || ""}\n` +
        `curl -s ${location.origin}/classify -H 'Content-Type: application/json' -d '${body.replaceAll("'", "'\\''")}'`;
    } catch (error) { byId("answer").textContent = error.message; }
  }

  byId("theme").addEventListener("click", () => {
    const dark = getComputedStyle(document.documentElement).getPropertyValue("--ground").trim() === "#0f131a";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
  });
  byId("span").addEventListener("change", () => {
    shownSeconds = Number(byId("span").value);
    if (history.length > 0) render(history[history.length - 1]);
  });
  byId("key").addEventListener("change", () => { if (stopping) stopping.abort(); });
  // Enter also fires "change" on the field, which is enough: do not submit the form.
  byId("login").addEventListener("submit", (event) => event.preventDefault());
  byId("form").addEventListener("submit", (event) => { event.preventDefault(); tryText(); });
  const recorded = byId("recorded");
  if (recorded) {
    for (const moment of JSON.parse(recorded.textContent)) show(moment);
  } else {
    follow();
  }
})();
