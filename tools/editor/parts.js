// What mmqjp/web/static/editor.js uses of CodeMirror.
export { autocompletion, completionKeymap } from "@codemirror/autocomplete";
export { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
export { HighlightStyle, StreamLanguage, bracketMatching, syntaxHighlighting, syntaxTree } from "@codemirror/language";
export { lintKeymap, setDiagnostics } from "@codemirror/lint";
export { EditorState } from "@codemirror/state";
export { EditorView, keymap, lineNumbers } from "@codemirror/view";
export { tags } from "@lezer/highlight";
