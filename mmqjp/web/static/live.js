// Shows outputs as they come. The connection is closed while nobody looks; only counts are announced.
const ROOT = new URL("../../", import.meta.url); // a proxy may show the site below a path
const list = document.querySelector("#live");
const state = document.querySelector("#live-state");
const count = document.querySelector("#live-count");
const MOST = 200;
let source, retry, seen = list?.dataset.after ?? "", fresh = 0, paused = false;

const badge = Object.assign(document.createElement("span"), { className: "state wait" });
const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Pause" });

function tell(kind, text) {
  badge.className = `state ${kind}`;
  badge.textContent = text;
}

const cards = (id) => list.querySelectorAll(`[data-story="${CSS.escape(id)}"]`);

// A story stays where it is, open if it was, and those that it took up disappear.
function put(item) {
  document.querySelector("#live-empty")?.remove();
  const before = document.documentElement.scrollHeight;
  item.classList.add("new");
  for (const id of item.dataset.merged?.split(" ") ?? []) cards(id).forEach((card) => card.remove());
  const [card] = item.dataset.story ? cards(item.dataset.story) : [];
  if (card?.querySelector("details[open]")) item.querySelector("details").open = true;
  if (card) card.replaceWith(item);
  else list.prepend(item);
  while (list.children.length > MOST) list.lastElementChild.remove();
  // Whoever reads further down keeps the place.
  if (scrollY > 200) scrollBy({ top: document.documentElement.scrollHeight - before, behavior: "instant" });
  fresh += 1;
}

function open() {
  close();
  const query = new URLSearchParams({ form: "html", query: list.dataset.query, after: seen });
  source = new EventSource(new URL(`events?${query}`, ROOT));
  source.onopen = () => tell("on", "connected");
  source.onerror = () => {
    tell("wait", "connecting again");
    if (source?.readyState === EventSource.CLOSED) retry = setTimeout(open, 10000);
  };
  source.addEventListener("output", (event) => {
    seen = event.lastEventId;
    const piece = document.createElement("template");
    piece.innerHTML = event.data; // made by our own templates, which escape all texts
    put(piece.content.firstElementChild);
  });
  source.addEventListener("gap", (event) => {
    seen = event.lastEventId;
    const { first, last } = JSON.parse(event.data);
    put(Object.assign(document.createElement("li"), { className: "gap", textContent: `${last - first + 1} outputs are left out here.` }));
  });
}

function close() {
  clearTimeout(retry);
  source?.close();
  source = undefined;
}

function look() {
  if (paused || document.hidden) close();
  else if (!source) open();
  if (paused) tell("off", "paused");
  button.textContent = paused ? "Go on" : "Pause";
}

if (list) {
  state.replaceChildren(badge);
  state.after(button);
  button.addEventListener("click", () => ((paused = !paused), look()));
  document.addEventListener("visibilitychange", look);
  addEventListener("pagehide", close);
  setInterval(() => {
    if (fresh) count.textContent = `${fresh} new ${fresh === 1 ? "output" : "outputs"}`;
    fresh = 0;
  }, 5000);
  tell("wait", "connecting");
  look();
}
