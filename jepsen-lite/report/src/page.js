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
  const cluster = (offset) => (offset ? String(offset + data.clusterBase) : "");

  const row = (moment) => {
    const [what, at, length = 0, flags = 0, who = 0, node = 0, index = 0, time = 0, attempt = 0, until = 0, token = 0, note = 0] = moment;
    const cell = (text, name) => make("td", name ? { class: name } : {}, String(text || ""));
    const when = at === null || at === undefined ? "" : `${flags & 1 ? "≈ " : ""}${seconds(at)}`;
    return make("tr", flags & 2 ? { class: "odd" } : {},
      cell(texts[what]), cell(when, "number"), cell(length ? took(length) : "", "number"), cell(texts[who]),
      cell(node ? `node ${node - 1}` : ""), cell(index || "", "number"), cell(cluster(time), "number"),
      cell(attempt || "", "number"), cell(cluster(until), "number"), cell(texts[note], "free"), cell(token, "token"));
  };

  const show = (message) => {
    answer.textContent = "";
    if (!Object.hasOwn(lives, message)) {
      answer.textContent = message ? `This page holds no life of ${message}.` : "";
      return false;
    }
    const [, , fate, skipped, moments] = lives[message];
    const head = ["what", "when", "took", "who", "answered by", "log index", "cluster time (ms)", "attempt", "leased until (ms)", "answer", "token"];
    const close = make("button", { type: "button" }, "close");
    close.addEventListener("click", () => dialog.close());
    const parts = [
      make("div", { class: "top" }, make("h2", { id: "life-of" }, `The life of ${message}`), close),
      make("p", {}, (texts[fate] ? `Fate: ${texts[fate]}. ` : "") +
        "What clients tell of has their times; what only the log tells of (≈) stands between its neighbours there. What is marked is out of the ordinary."),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `moments of ${message}` }, make("table", {},
        make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)))),
        make("tbody", {}, ...moments.map(row)))),
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
