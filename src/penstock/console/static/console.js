// Additions to pages that work without: moving numbers, copying, keys. No state, no framework.
"use strict";

const body = document.body;

// Numbers and charts from one stream of events; closed while the tab is hidden.
let stream = null;
let polling = null;
function watched() {
  const names = new Set();
  for (const part of document.querySelectorAll("[data-live]")) names.add(part.dataset.live);
  for (const part of document.querySelectorAll("[data-live-html]")) names.add(part.dataset.liveHtml);
  return [...names].slice(0, 100);
}
function show(values) {
  for (const part of document.querySelectorAll("[data-live]")) {
    const value = values[part.dataset.live];
    if (value === undefined || part.textContent === value) continue;
    part.textContent = value;
    part.classList.remove("flash");
    void part.offsetWidth;
    part.classList.add("flash");
  }
  for (const part of document.querySelectorAll("[data-live-html]")) {
    // Made and escaped by the console itself.
    const value = values[part.dataset.liveHtml];
    if (value !== undefined) part.innerHTML = value;
  }
}
function disconnect() {
  stream?.close();
  clearInterval(polling);
  stream = polling = null;
}
function connect() {
  disconnect();
  const names = watched();
  if (document.hidden || !names.length || !body.dataset.liveUrl) return;
  const url = body.dataset.liveUrl + "?watch=" + encodeURIComponent(names.join(","));
  stream = new EventSource(url);
  stream.onmessage = (event) => show(JSON.parse(event.data));
  const ask = () => {
    disconnect();
    polling = setInterval(async () => {
      try { show(await (await fetch(url + "&once=1")).json()); } catch { /* The next round asks again. */ }
    }, 8000);
  };
  // Many tabs of one browser: the newest ones keep a stream, this one asks from time to time.
  stream.addEventListener("ended", ask);
  // A stream that is refused is not tried again by the browser.
  stream.onerror = (event) => { if (event.target.readyState === EventSource.CLOSED && event.target === stream) ask(); };
}

// Sections that are asked for again: the page itself is fetched and its fresh parts are taken over.
async function refresh() {
  const parts = document.querySelectorAll("[data-fresh]");
  if (!parts.length || document.hidden) return;
  for (const part of parts) if (part.contains(document.activeElement) && document.activeElement.matches("input, textarea, select")) return;
  const answer = await fetch(location.href, { headers: { "x-penstock-refresh": "1" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of parts) {
    const fresh = page.getElementById(part.id);
    if (!fresh || fresh.innerHTML === part.innerHTML) continue;
    const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const open = [...part.querySelectorAll("details[open][id]")].map((one) => one.id);
    part.replaceChildren(...fresh.childNodes);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    if (focused) for (const link of part.querySelectorAll("a")) if (link.getAttribute("href") === focused) { link.focus(); break; }
    offerCopying(part);
    mark();
  }
  const asOf = page.getElementById("as-of");
  if (asOf) document.getElementById("as-of")?.replaceChildren(...asOf.childNodes);
  const ended = page.querySelector("[data-refresh-seconds]");
  const running = document.querySelector("[data-refresh-seconds]");
  if (running && !ended) running.removeAttribute("data-refresh-seconds");
}
async function refreshAgain() {
  const wanted = document.querySelector("[data-refresh-seconds]");
  try { await refresh(); } catch { /* The console is away; the next round asks again. */ }
  setTimeout(refreshAgain, 1000 * (wanted ? Number(wanted.dataset.refreshSeconds) : 2.5));
}

// Follow a topic: new rows come on top; a second press stops it, and so does hiding the tab.
const follow = document.getElementById("follow");
let tail = null;
function stopFollowing() {
  tail?.close();
  tail = null;
  if (follow) follow.textContent = "Follow live";
}
if (follow) {
  follow.hidden = false;
  follow.addEventListener("click", () => {
    if (tail) return stopFollowing();
    const note = document.getElementById("tail-note");
    let skipped = 0;
    follow.textContent = "Stop following";
    note.hidden = false;
    note.textContent = "Waiting for new messages.";
    tail = new EventSource(follow.dataset.tail);
    tail.addEventListener("ended", () => {
      stopFollowing();
      note.textContent = "Stopped, as other tabs of this browser follow, too.";
    });
    tail.onmessage = (event) => {
      const { html, skipped: more } = JSON.parse(event.data);
      skipped += more;
      note.textContent = skipped ? `Following; ${skipped} skipped, as more than 50 a second came.` : "Following.";
      const rows = document.querySelector("#messages tbody");
      if (!rows) return location.reload();
      const made = document.createElement("template");
      made.innerHTML = html;
      rows.prepend(made.content);
      while (rows.children.length > 500) rows.lastElementChild.remove();
    };
  });
  document.addEventListener("visibilitychange", () => { if (document.hidden) stopFollowing(); });
}

function offerCopying(within) {
  for (const button of within.querySelectorAll("[data-copy], [data-copy-from]")) button.hidden = false;
}
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy], [data-copy-from]");
  if (!button) return;
  const from = button.dataset.copyFrom && document.getElementById(button.dataset.copyFrom);
  await navigator.clipboard.writeText(from ? from.textContent : button.dataset.copy);
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1500);
});

// Keys: / search, g then a letter, j and k for rows, Enter opens, ? tells them; not while typing.
const places = { o: "", t: "topics", g: "groups", d: "dead-letters", l: "delays", c: "clients", b: "brokers", s: "spark", a: "access" };
let leading = false;
let row = -1;
function mark() {
  const rows = document.querySelectorAll("table.rows tbody tr");
  rows.forEach((one, index) => one.classList.toggle("chosen", index === row));
  return rows;
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || body.dataset.keys === "off") return;
  if (event.target.matches("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (leading && event.key in places) {
    location.href = body.dataset.home + places[event.key];
  } else if (event.key === "?") {
    document.getElementById("keys")?.showModal();
  } else if (event.key === "/") {
    event.preventDefault();
    document.getElementById("search")?.focus();
  } else if (event.key === "j" || event.key === "k") {
    const count = mark().length;
    row = Math.max(0, Math.min(count - 1, row + (event.key === "j" ? 1 : -1)));
    const rows = mark();
    rows[row]?.querySelector("a")?.focus();
    rows[row]?.scrollIntoView({ block: "nearest" });
  }
  leading = event.key === "g" && !leading;
});

// A choice sends its form at once where that is all there is to it.
for (const part of document.querySelectorAll("[data-submit]")) part.addEventListener("change", () => part.form.requestSubmit());
// All boxes of a form at once.
for (const all of document.querySelectorAll("[data-all]")) {
  all.hidden = false;
  all.addEventListener("change", () => { for (const box of all.form.querySelectorAll(`input[name="${all.dataset.all}"]:enabled`)) box.checked = all.checked; });
}

document.addEventListener("visibilitychange", connect);
window.addEventListener("pagehide", disconnect);
offerCopying(document);
connect();
setTimeout(refreshAgain, 2500);
