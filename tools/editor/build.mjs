// Bundles the parts of CodeMirror that the editor uses into one file, which is kept in the repository:
//
//   cd tools/editor && npm ci && npm run build
//
// The file names the versions and the licence of what is in it, and the digest of what follows its head.
import { createHash } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import { build } from "esbuild";

const TARGET = new URL("../../mmqjp/web/static/codemirror.js", import.meta.url);
const read = async (path) => readFile(new URL(path, import.meta.url), "utf-8");

// The policy of the page lets no style element be, but sheets that a script constructs. CodeMirror uses these in shadow
// roots only.
const ADOPTS = "!root.head && root.adoptedStyleSheets";
const adopting = {
  name: "adopting",
  setup(builder) {
    builder.onLoad({ filter: /style-mod\/src\/style-mod\.js$/ }, async ({ path }) => {
      const text = await readFile(path, "utf-8");
      if (text.split(ADOPTS).length !== 2) throw new Error("style-mod is not as expected: see build.mjs");
      return { contents: text.replace(ADOPTS, "root.adoptedStyleSheets") };
    });
  },
};

const { outputFiles, metafile } = await build({
  absWorkingDir: new URL(".", import.meta.url).pathname,
  bundle: true, charset: "utf8", entryPoints: ["parts.js"], format: "esm", legalComments: "none", metafile: true, minify: true,
  plugins: [adopting], target: "es2022", write: false,
});
const body = outputFiles[0].text;
const inside = Object.entries(Object.values(metafile.outputs)[0].inputs).filter(([, { bytesInOutput }]) => bytesInOutput);
const names = new Set(inside.map(([path]) => path.match(/node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1]).filter(Boolean));
const licences = new Map();
const versions = [];
for (const name of [...names].sort()) {
  const { version } = JSON.parse(await read(`node_modules/${name}/package.json`));
  const text = await read(`node_modules/${name}/LICENSE`);
  versions.push(`${name} ${version}, ${text.match(/^Copyright .*$/m)[0]}`);
  const terms = text.slice(text.indexOf("Permission is hereby granted")).trim();
  licences.set(terms.replace(/\s+/g, " "), terms);
}
if (licences.size !== 1) throw new Error("the licences differ: the head has room for one");
const esbuild = JSON.parse(await read("node_modules/esbuild/package.json")).version;
const head = `/*! Parts of CodeMirror, bundled by tools/editor/build.mjs with esbuild ${esbuild}; style-mod constructs its sheets.
sha256 of what follows this comment: ${createHash("sha256").update(body).digest("hex")}

${versions.join("\n")}

MIT License

${[...licences.values()][0]}
*/
`;
await writeFile(TARGET, head + body);
console.log(`${TARGET.pathname}: ${Math.round((head + body).length / 1024)} KiB`);
