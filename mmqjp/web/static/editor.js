// An editor in place of the field for queries: colours, mistakes where they are, and completion. It writes into the field,
// which check.js and the form read; without it the field stays as it is.
import {
  EditorState, EditorView, HighlightStyle, StreamLanguage, autocompletion, bracketMatching, completionKeymap, defaultKeymap,
  history, historyKeymap, keymap, lineNumbers, lintKeymap, setDiagnostics, syntaxHighlighting, syntaxTree, tags,
} from "./codemirror.js";

const ROOT = new URL("../../", import.meta.url); // a proxy may show the site below a path
const field = document.querySelector("#new-query textarea");
const label = document.querySelector("label[for=text]");
const KEYWORDS = new Set(field.dataset.keywords.split(" "));
const FUNCTIONS = new Set(field.dataset.functions.split(" "));
const NAME = /^[\p{L}_][\p{L}\p{N}_.\-]*/u;

// After "/", "@", ":", "." and "->" a keyword is a name.
function word(stream, state) {
  let text = stream.match(NAME)[0];
  if (stream.peek() === ">" && text.endsWith("-")) {
    stream.backUp(1);
    text = text.slice(0, -1);
  }
  if (state.before === "->") return "variableName.definition";
  if (state.before === "@") return "attributeName";
  if (/[/:.]/.test(state.before)) return "propertyName";
  if (FUNCTIONS.has(text) && stream.match(/^\s*\(/, false)) return "variableName.function";
  return KEYWORDS.has(text.toUpperCase()) ? "keyword" : "variableName";
}

function token(stream, state) {
  if (state.depth) {
    while (state.depth && !stream.eol()) {
      if (stream.match("(:")) state.depth += 1;
      else if (stream.match(":)")) state.depth -= 1;
      else stream.next();
    }
    return "comment";
  }
  if (stream.eatSpace()) return null;
  if (stream.match("(:")) {
    state.depth = 1;
    return "comment";
  }
  if (stream.match("--")) {
    stream.skipToEnd();
    return "comment";
  }
  if (stream.match(/^"(?:[^"]|"")*"?/) || stream.match(/^'(?:[^']|'')*'?/)) return "string";
  if (stream.match(/^<\/?[\p{L}_][^\s<>/{}"'=]*/u)) return "tagName";
  if (stream.match(/^-?(?:\d+\.?\d*|\.\d+)%?(?:\s*(?:us|ms|s|min|h|d|w)\b)?/)) return "number";
  if (stream.match(NAME, false)) {
    const found = word(stream, state);
    state.before = "";
    return found;
  }
  state.before = stream.match(/^(?:->|\/\/?|[@:.])/)?.[0] ?? (stream.next(), "");
  return "operator";
}

const language = StreamLanguage.define({
  name: "xscl",
  startState: () => ({ depth: 0, before: "" }),
  token,
  languageData: { commentTokens: { line: "--", block: { open: "(:", close: ":)" } } },
});
const colours = HighlightStyle.define(Object.entries({
  keyword: tags.keyword, string: tags.string, comment: tags.comment, number: tags.number, tag: tags.tagName,
  function: tags.function(tags.variableName), definition: tags.definition(tags.variableName), attribute: tags.attributeName,
}).map(([name, tag]) => ({ tag, class: `tok-${name}` })));

// What the store has is asked for once, when it is first needed.
let known;
async function store() {
  known ??= fetch(new URL("api/v1/completions", ROOT)).then((answer) => (answer.ok ? answer.json() : null)).catch(() => null);
  return (await known) ?? { streams: [], events: {}, paths: {} };
}

const options = (names, type, more = {}) => [...new Set(names)].map((name) => ({ label: name, type, ...more }));

// The names that may stand behind a slash: in the elements of a stream; in the element before it, which a variable, or the
// dot of a filter, stands for; else all.
const FILTERED = /([\p{L}\p{N}_\-*:]+)(?:->\w+)?(?:\[[^[\]]*\])*\[[^[\]]*(?<![\p{L}\p{N}_\-*:\]/])\.\/\/?$/u;

function steps(paths, text, before) {
  const [, first, slashes] = before.match(/([\p{L}\p{N}_.\-*:]*)(?:\[[^[\]]*\])*(?:->\w+)?(\/\/?)$/u);
  const owner = first === "." ? (before.match(FILTERED)?.[1] ?? "") : (boundTo(text, first) ?? first);
  const streams = Object.values(paths);
  const all = (of) => of.flatMap((one) => Object.values(one)).flat();
  if (Object.hasOwn(paths, owner) && !before.slice(0, before.lastIndexOf(owner)).endsWith("/")) {
    return slashes === "/" ? (paths[owner][""] ?? []) : all([paths[owner]]);
  }
  const inside = streams.flatMap((one) => one[owner] ?? []);
  return inside.length && slashes === "/" ? inside : all(streams);
}

// The name of the step at which a variable is bound.
const boundTo = (text, name) =>
  [...text.matchAll(/([\p{L}\p{N}_\-*:]+)(?:\[[^[\]]*\])*\s*->\s*(\w+)/gu)].find((found) => found[2] === name)?.[1];

const elementsFirst = (one, other) => one.startsWith("@") - other.startsWith("@") || (one < other ? -1 : 1);

// Nothing is offered for a name that is only being given, so that Enter ends the line.
const isNew = (before, typed) => typed.includes("->") || /(?:\b(?:publish|as|event)\s+|->\s*)$/i.test(before);

async function complete(context) {
  const inside = syntaxTree(context.state).resolveInner(context.pos, -1).name;
  if (/string|comment/i.test(inside)) return null;
  const line = context.state.doc.lineAt(context.pos);
  const text = line.text.slice(0, context.pos - line.from);
  const [typed] = text.match(/[@*:\p{L}\p{N}_.\-]*$/u);
  const before = text.slice(0, text.length - typed.length);
  const step = /\/$/.test(before) && !typed.includes("->");
  if (!step && !context.explicit && (typed.length < 2 || isNew(before, typed))) return null;
  const { streams, events, paths } = await store();
  if (context.aborted) return null;
  const from = context.pos - (typed.match(/->/) ? typed.length - typed.lastIndexOf("->") - 2 : typed.length);
  const validFor = /^[@*:\p{L}\p{N}_.\-]*$/u;
  const whole = context.state.doc.toString();
  if (step) {
    const names = [...new Set(steps(paths, whole, before))].sort(elementsFirst);
    return { from, validFor, options: options(names, "property").map((one, at) => ({ ...one, boost: -at / 100 })) };
  }
  const variables = [...whole.matchAll(/->\s*(\w+)/g)].map((found) => found[1]);
  return {
    from, validFor,
    options: [
      ...options(variables, "variable", { boost: 3 }),
      ...options(streams, "namespace", { boost: 2, detail: "stream" }),
      ...options(Object.keys(events), "class", { boost: 2, detail: "event" }),
      ...options(Object.values(events).flat(), "property"),
      ...options(KEYWORDS, "keyword", { boost: 1 }),
      ...options(FUNCTIONS, "function").map((one) => ({ ...one, apply: `${one.label}(` })),
    ],
  };
}

// Lines and columns of mistakes count from 1, and characters beyond the first plane as one.
function diagnostics(doc, found, severity) {
  return found.filter((one) => one.line !== null && one.line <= doc.lines).map((one) => {
    const line = doc.line(one.line);
    const units = (characters) => [...line.text].slice(0, characters).join("").length;
    const from = line.from + units(one.column - 1);
    const to = Math.max(from, line.from + units(one.column - 1 + one.length));
    return { from, to, severity, message: one.hint ? `${one.message}: ${one.hint}` : one.message };
  });
}

// Over a selection, Chrome types in the colours of what was there: by styles that the policy of the page refuses.
function typeOver(event, view) {
  if (event.inputType !== "insertText" || !event.data || view.composing) return false;
  let { from, to } = view.state.selection.main;
  const chosen = document.getSelection(); // the editor may not have heard of it yet
  if (from === to && !chosen.isCollapsed) {
    [from, to] = [[chosen.anchorNode, chosen.anchorOffset], [chosen.focusNode, chosen.focusOffset]]
      .map((place) => view.posAtDOM(...place)).sort((one, other) => one - other);
  }
  if (from === to) return false;
  const insert = view.state.toText(event.data);
  view.dispatch({ changes: { from, to, insert }, selection: { anchor: from + insert.length }, userEvent: "input.type", scrollIntoView: true });
  event.preventDefault();
  return true;
}

function start() {
  const home = Object.assign(document.createElement("div"), { className: "editor" });
  label.id = "text-label";
  label.removeAttribute("for");
  let mistakes = 0;
  const view = new EditorView({
    parent: home,
    state: EditorState.create({
      doc: field.value,
      extensions: [
        lineNumbers(), history(), bracketMatching(), language, syntaxHighlighting(colours), EditorView.lineWrapping,
        autocompletion({ override: [complete], icons: false }),
        keymap.of([...completionKeymap, ...defaultKeymap, ...historyKeymap, ...lintKeymap]),
        EditorState.tabSize.of(2),
        EditorView.contentAttributes.of(() => ({
          "aria-labelledby": label.id, "aria-describedby": "checked problems", "aria-invalid": `${mistakes > 0}`,
          autocapitalize: "off", autocorrect: "off", spellcheck: "false",
        })),
        EditorView.domEventHandlers({ beforeinput: typeOver }),
        EditorView.updateListener.of((update) => {
          if (!update.docChanged) return;
          field.value = update.state.doc.toString();
          field.dispatchEvent(new Event("input"));
        }),
      ],
    }),
  });
  const hadFocus = document.activeElement === field;
  field.hidden = true;
  field.before(home);
  label.addEventListener("click", () => view.focus());
  field.addEventListener("checked", ({ detail }) => {
    const { doc } = view.state;
    mistakes = detail.mistakes;
    const all = [...diagnostics(doc, detail.errors, "error"), ...diagnostics(doc, detail.remarks, "warning")];
    view.dispatch(setDiagnostics(view.state, all.sort((one, other) => one.from - other.from)));
  });
  if (hadFocus) view.focus();
  if (field.value.trim()) field.dispatchEvent(new Event("input"));
}

start();
