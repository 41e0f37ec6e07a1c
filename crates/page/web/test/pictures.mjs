// Takes the pictures for docs/ in a headless browser. Usage: node pictures.mjs MODULES BROWSER
// FOLDER OUT. FOLDER contains the pages, and built books of the documentation in folders named
// book*. For review, OUT also gets a picture of every page at widths of 800 and 1400 pixels, in
// light and dark. Exits with status 1 if a page is wider than the window.

import { existsSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, browser, folder, out] = process.argv.slice(2);
const { chromium } = createRequire(pathToFileURL(modules + "/"))("playwright-core");
const opened = await chromium.launch({ executablePath: browser, args: ["--no-sandbox"], timeout: 60_000 });

let failed = false;

async function picture(name, file, colorScheme, width, height, ready, look) {
    const tab = await opened.newPage({ viewport: { width, height }, colorScheme, reducedMotion: "reduce" });
    tab.setDefaultTimeout(60_000);
    await tab.goto(pathToFileURL(`${folder}/${file}`).href);
    await ready(tab);
    const options = (await look?.(tab)) ?? {};
    await ready(tab);
    await tab.screenshot({ path: `${out}/${name}.png`, ...options });
    const wide = await tab.evaluate(() => document.documentElement.scrollWidth);
    if (wide > width) {
        console.error(`pictures: ${file}: ${wide} pixels wide in a window of ${width}`);
        failed = true;
    }
    await tab.close();
}

/** Takes pictures of all given files, at two widths and in both themes. */
async function all(names, ready) {
    for (const [name, file] of names) {
        for (const width of [800, 1400]) {
            for (const colorScheme of ["light", "dark"]) {
                await picture(`${name}-${width}-${colorScheme}`, file, colorScheme, width, 900, ready, () => ({ fullPage: true }));
            }
        }
    }
}

async function drawn(tab) {
    await tab.waitForSelector("html[data-ready]");
    await tab.waitForSelector(".scroller canvas[data-still=true]");
}

/** Returns a function that scrolls to a card of the page. The card is found by its title. */
const card = (title) => (tab) => tab.locator("section.card", { has: tab.locator("h2", { hasText: title }) }).first()
    .evaluate((card) => card.scrollIntoView());

/** Scrolls to the timeline and selects a kernel, so that the arrow from its launch is visible. */
async function kernel(tab) {
    await tab.$eval(".timeline", (timeline) => timeline.scrollIntoView());
    await tab.fill(".timeline input", "ncclDevKernel");
    await tab.press(".timeline input", "Enter");
    await tab.press(".timeline input", "Escape");
    await tab.keyboard.press("f");
    for (let n = 0; n < 7; n++) await tab.keyboard.press("s");
}

if (existsSync(`${folder}/one.html`)) {
    await picture("page-light", "ranks.html", "light", 1400, 900, drawn);
    await picture("page-dark", "one.html", "dark", 1400, 900, drawn, kernel);
    await picture("page-batches", "batches.html", "light", 1400, 900, drawn, card(/^Iteration/));
    await picture("page-router", "moe.html", "light", 1400, 900, drawn, card(/router/i));
    await all(["one", "batches", "moe", "ranks"].map((name) => [name, `${name}.html`]), drawn);
}
// Files of a book that need no picture: print.html repeats all pages, toc.html repeats parts of
// pages, and index.html repeats the first page. 404.html finds its style only on a server.
const parts = ["print.html", "toc.html", "index.html", "404.html"];
for (const book of readdirSync(folder).filter((name) => name.startsWith("book"))) {
    const files = readdirSync(`${folder}/${book}`).filter((name) => name.endsWith(".html") && !parts.includes(name));
    await all(files.map((name) => [`book-${name.slice(0, -5)}`, `${book}/${name}`]), (tab) => tab.evaluate(() => document.fonts.ready));
}
await opened.close();
process.exit(failed ? 1 : 0);
