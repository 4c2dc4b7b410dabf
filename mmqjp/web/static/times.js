// Shows times, which pages have in UTC, in the visitor's zone: as a page comes, before it is painted, and in what comes
// later. Their width stays. Without this script, and on hover, they are in UTC.
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "your time zone";
const SHOWN = "time[datetime], .zone";

function local(text, exact) {
  const at = new Date(text);
  const date = [at.getFullYear(), at.getMonth() + 1, at.getDate()];
  const time = [at.getHours(), at.getMinutes(), ...(exact ? [at.getSeconds()] : [])];
  const [days, clock] = [date, time].map((numbers) => numbers.map((number) => String(number).padStart(2, "0")));
  return isNaN(at) ? text : `${days.join("-")} ${clock.join(":")}`;
}

function show(one) {
  const text = one.dateTime ? local(one.dateTime, one.matches(".exact")) : ZONE;
  if (one.textContent !== text) one.textContent = text;
}

// A text may come in pieces, so that its element is seen again.
new MutationObserver((changes) => {
  for (const { target, addedNodes } of changes)
    for (const node of [target, ...addedNodes]) {
      const element = node instanceof Element ? node : node.parentElement;
      const around = element?.closest(SHOWN);
      for (const one of around ? [around] : node === target ? [] : (element?.querySelectorAll(SHOWN) ?? [])) show(one);
    }
}).observe(document, { childList: true, characterData: true, subtree: true });

document.addEventListener("DOMContentLoaded", () => {
  for (const one of document.querySelectorAll("[data-at]")) one.textContent = local(one.dataset.at) + one.textContent.slice(16);
});
