// Keys for those who like them. They can be switched off, and never take a key from a field or from the browser.
const ROOT = new URL("../../", import.meta.url); // a proxy may show the site below a path
const PLACES = { q: ".", l: "live", i: "items", f: "feeds", s: "sinks", e: "engine", n: "new" };
const OFF = "keys-off";
const dialog = document.createElement("dialog");
let began = 0;

function help() {
  if (!dialog.isConnected) {
    dialog.setAttribute("aria-labelledby", "keys-title");
    dialog.innerHTML = `<h2 id="keys-title">Keys</h2><dl class="key-list"></dl>
      <label class="tick"><input type="checkbox"> <span>Use these keys</span></label>
      <form method="dialog" class="buttons"><button>Close</button></form>`;
    const keys = [["g q", "queries"], ["g l", "live"], ["g i", "items"], ["g f", "feeds"], ["g s", "sinks"], ["g e", "engine"], ["g n", "new query"],
      ["j", "next"], ["k", "previous"], ["o", "open"], ["/", "search"], ["?", "this list"]];
    for (const [key, text] of keys) {
      const [term, meaning] = ["dt", "dd"].map((name) => dialog.querySelector("dl").appendChild(document.createElement(name)));
      for (const part of key.split(" ")) term.append(Object.assign(document.createElement("kbd"), { textContent: part }), " ");
      meaning.textContent = text;
    }
    const box = dialog.querySelector("input");
    box.checked = !localStorage.getItem(OFF);
    box.onchange = () => (box.checked ? localStorage.removeItem(OFF) : localStorage.setItem(OFF, "1"));
    document.body.append(dialog);
  }
  dialog.showModal();
}

function step(by) {
  const all = [...document.querySelectorAll(".match, main tbody tr, .items.listed > li")].filter((one) => one.querySelector("a, button") && one.checkVisibility());
  if (!all.length) return;
  const now = all.findIndex((one) => one.classList.contains("chosen"));
  const next = all[now < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(now + by, 0), all.length - 1)];
  all[now]?.classList.remove("chosen");
  next.classList.add("chosen");
  next.querySelector("a, button").focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

const ACTIONS = {
  j: () => step(1),
  k: () => step(-1),
  o: () => document.querySelector(".chosen a")?.click(),
  "/": () => document.querySelector("main input[type=search], main .cm-content, main textarea, main input:not([type=hidden])")?.focus(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || dialog.open) return;
  if (event.target.closest("input, textarea, select, [contenteditable]")) return;
  const second = Date.now() - began < 1500;
  began = 0;
  if (localStorage.getItem(OFF)) return;
  if (event.key === "?") help();
  else if (second && PLACES[event.key]) location.assign(new URL(PLACES[event.key], ROOT));
  else if (event.key === "g") began = Date.now();
  else if (ACTIONS[event.key]) ACTIONS[event.key]();
  else return;
  event.preventDefault();
});

const hint = document.querySelector(".keys-hint");
if (hint) {
  const button = Object.assign(document.createElement("button"), { className: "plain", onclick: help });
  button.append("Keys ", Object.assign(document.createElement("kbd"), { textContent: "?" }));
  hint.replaceWith(button);
}
