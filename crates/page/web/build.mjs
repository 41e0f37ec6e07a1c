// Bundles the page's script and style, with the licences of bundled libraries. Usage: node build.mjs FOLDER.
import { readFileSync } from "node:fs";
import { build } from "esbuild";

const folder = process.argv[2];
if (!folder) throw new Error("no FOLDER");
const licence = readFileSync("node_modules/uplot/LICENSE", "utf8").trim();
const version = JSON.parse(readFileSync("node_modules/uplot/package.json", "utf8")).version;
const banner = `/*! uPlot ${version}\n${licence}\n*/`;

await build({
    entryPoints: { page: "src/main.ts" },
    outdir: folder,
    bundle: true,
    minify: true,
    charset: "ascii",
    format: "iife",
    target: ["chrome123", "firefox120", "safari17.5"],
    legalComments: "none",
    banner: { js: banner, css: banner },
});
