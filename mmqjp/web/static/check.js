// Checks the text of a query as one types. Only a short summary is announced; the places stand below the text.
const ROOT = new URL("../../", import.meta.url); // a proxy may show the site below a path
const text = document.querySelector("#new-query textarea");
const summary = document.querySelector("#checked");
const problems = document.querySelector("#problems");
let timer, asked;

function shown(found) {
  const item = document.createElement("li");
  item.append(Object.assign(document.createElement("pre"), { textContent: found.shown }));
  return item;
}

function more(count, noun) {
  return count > 0 ? [Object.assign(document.createElement("li"), { textContent: `and ${count} more ${noun}` })] : [];
}

function words(found) {
  const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
  if (found.mistakes) return count(found.mistakes, "mistake");
  if (!found.queries) return "";
  const noun = found.queries === 1 ? "query" : "queries";
  const names = found.names.slice(0, 3).join(", ") + (found.queries > 3 ? " and others" : "");
  return `No mistakes. ${found.queries} ${noun}: ${names}.` + (found.warnings ? ` ${count(found.warnings, "warning")}.` : "");
}

async function check() {
  asked?.abort();
  asked = new AbortController();
  try {
    const answer = await fetch(new URL("api/v1/check", ROOT), {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ text: text.value }), signal: asked.signal,
    });
    if (!answer.ok) return;
    const found = await answer.json();
    problems.replaceChildren(
      ...found.errors.map(shown), ...more(found.mistakes - found.errors.length, "mistakes"),
      ...found.remarks.map(shown), ...more(found.warnings - found.remarks.length, "warnings"),
    );
    text.toggleAttribute("aria-invalid", found.mistakes > 0);
    if (found.mistakes) text.setAttribute("aria-invalid", "true");
    text.dispatchEvent(new CustomEvent("checked", { detail: found }));
    summary.classList.toggle("fine", found.queries > 0);
    if (summary.textContent !== words(found)) summary.textContent = words(found);
  } catch (error) {
    if (error.name !== "AbortError") summary.textContent = "";
  }
}

text?.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(check, 300);
});
