"use strict";
// The lives of messages, and a line that follows the pointer through all charts. All texts of the run are set as
// text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { lives, texts } = data;
  const dialog = document.getElementById("life");
  const answer = document.getElementById("answer");
  const wanted = document.getElementById("wanted");

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const seconds = (tenths) => `${(tenths / 10000).toFixed(3)} s`;
  const took = (tenths) => (tenths >= 10000 ? `${(tenths / 10000).toFixed(2)} s` : `${(tenths / 10).toFixed(1)} ms`);
  const cluster = (offset) => (offset ? `${(offset / 1000).toFixed(3)} s` : "");
  const faults = (at) => data.faults.filter(([, from, until]) => from <= at && at <= until).map(([number]) => number).join(", ");

  // Columns: name, class, and what a moment has there.
  const columns = [
    ["what", "", (m) => texts[m.what]],
    ["told by", "", (m) => (m.flags & 1 ? "log" : "client")],
    ["when", "number", (m) => (m.at === null ? "" : `${m.flags & 1 ? "≈ " : ""}${seconds(m.at)}`)],
    ["took", "number", (m) => (m.length ? took(m.length) : "")],
    ["faults then", "", (m) => (m.at === null ? "" : faults(m.at))],
    ["who", "", (m) => texts[m.who]],
    ["queue", "", (m) => texts[m.queue]],
    ["answered by", "", (m) => (m.node ? `node ${m.node - 1}` : "")],
    ["answer or reason", "free", (m) => texts[m.note]],
    ["attempt", "number", (m) => m.attempt || ""],
    ["log index", "number", (m) => m.index || ""],
    ["cluster time", "number", (m) => cluster(m.time)],
    ["leased until", "number", (m) => cluster(m.until)],
    ["token", "token", (m) => m.token || ""],
  ];
  const moment = ([what, at = null, length = 0, flags = 0, who = 0, node = 0, index = 0, time = 0, attempt = 0, until = 0, token = 0, note = 0, queue = 0]) =>
    ({ what, at, length, flags, who, node, index, time, attempt, until, token, note, queue });
  // What no moment has gets no column.
  const table = (moments) => {
    const used = columns.filter(([, , of]) => moments.some((m) => of(m) !== ""));
    const row = (m) => make("tr", m.flags & 2 ? { class: "odd" } : {}, ...used.map(([, name, of]) => make("td", { class: name }, String(of(m)))));
    return make("table", {},
      make("thead", {}, make("tr", {}, ...used.map(([name, kind]) => make("th", { scope: "col", class: kind }, name)))),
      make("tbody", {}, ...moments.map(row)));
  };

  const show = (message) => {
    answer.textContent = "";
    if (!Object.hasOwn(lives, message)) {
      answer.textContent = message ? `This page holds no life of ${message}.` : "";
      return false;
    }
    const [, , fate, skipped, moments] = lives[message];
    const close = make("button", { type: "button" }, "close");
    close.addEventListener("click", () => dialog.close());
    const parts = [
      make("div", { class: "top" }, make("h2", { id: "life-of" }, `The life of ${message}`), close),
      make("p", {}, ...(texts[fate] ? [make("strong", {}, `Fate: ${texts[fate]}.`)] : [])),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `moments of ${message}` }, table(moments.map(moment))),
      make("p", { class: "soft" }, `Clients tell when they asked and how long the answer took. Of what only the log tells of, the time is estimated (≈) from its neighbours. Marked is what is out of the ordinary. Cluster times are those of the leader's stamps, counted from ${data.clusterBase} ms.`),
    ];
    if (skipped) parts.push(make("p", { class: "soft" }, `${skipped} moments in the middle are left out.`));
    dialog.replaceChildren(...parts);
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    wanted.value = message;
    history.replaceState(null, "", `#message=${encodeURIComponent(message)}`);
    return true;
  };

  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => history.replaceState(null, "", location.pathname + location.search));
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-message]");
    if (button && !show(button.dataset.message)) wanted.focus();
  });
  document.getElementById("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    show(wanted.value.trim());
  });

  // A click on the dots means the nearest message that the page knows, if one is near.
  const dots = Object.entries(lives).filter(([, life]) => life[0] >= 0);
  const drawing = document.querySelector("#publishes svg");
  drawing.addEventListener("click", (event) => {
    const box = drawing.getBoundingClientRect();
    let [nearest, least] = [null, 14];
    for (const [message, [x, y]] of dots) {
      const distance = Math.hypot(box.left + (x / 10000) * box.width - event.clientX, box.top + (y / 1000) * box.height - event.clientY);
      if (distance < least) [nearest, least] = [message, distance];
    }
    if (nearest) show(nearest);
  });

  const time = document.querySelector(".time");
  const cursor = time.querySelector(".cursor");
  time.addEventListener("pointermove", (event) => {
    const box = cursor.parentElement.getBoundingClientRect();
    const part = (event.clientX - box.left) / box.width;
    cursor.hidden = part < 0 || part > 1;
    cursor.style.left = `${part * 100}%`;
    cursor.classList.toggle("left", part > 0.8);
    cursor.firstElementChild.textContent = `${((data.until - data.length * (1 - part)) / 1000).toFixed(2)} s`;
  });
  time.addEventListener("pointerleave", () => { cursor.hidden = true; });

  const asked = /^#message=(.+)$/.exec(location.hash);
  if (asked) show(decodeURIComponent(asked[1]));
})();
