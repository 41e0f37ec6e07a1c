// Takes the pictures of docs/ in a headless browser: node pictures.mjs MODULES BROWSER FOLDER OUT. The folder has the pages.
// Beside those of docs/, OUT gets every page at 800 and 1400 pixels, light and dark, to be looked at.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, browser, folder, out] = process.argv.slice(2);
const { chromium } = createRequire(pathToFileURL(modules + "/"))("playwright-core");
const opened = await chromium.launch({ executablePath: browser, args: ["--no-sandbox"], timeout: 60_000 });

async function picture(name, page, colorScheme, width, height, look) {
    const tab = await opened.newPage({ viewport: { width, height }, colorScheme, reducedMotion: "reduce" });
    tab.setDefaultTimeout(60_000);
    await tab.goto(pathToFileURL(`${folder}/${page}.html`).href);
    await tab.waitForSelector("html[data-ready]");
    await tab.waitForSelector(".scroller canvas[data-still=true]");
    const options = (await look?.(tab)) ?? {};
    await tab.waitForSelector(".scroller canvas[data-still=true]");
    await tab.screenshot({ path: `${out}/${name}.png`, ...options });
    await tab.close();
}

/** A card by its title, at the top of the window. */
const card = (title) => (tab) => tab.locator("section.card", { has: tab.locator("h2", { hasText: title }) }).first()
    .evaluate((card) => card.scrollIntoView());

/** The timeline at a kernel that is selected, with the arrow from its launch. */
async function kernel(tab) {
    await tab.$eval(".timeline", (timeline) => timeline.scrollIntoView());
    await tab.fill(".timeline input", "ncclDevKernel");
    await tab.press(".timeline input", "Enter");
    await tab.press(".timeline input", "Escape");
    await tab.keyboard.press("f");
    for (let n = 0; n < 4; n++) await tab.keyboard.press("s");
}

await picture("page-light", "one", "light", 1400, 900);
await picture("page-dark", "one", "dark", 1400, 900, kernel);
await picture("page-batches", "batches", "light", 1400, 900, card(/^Iteration/));
await picture("page-router", "moe", "light", 1400, 900, card(/router/i));
for (const page of ["one", "batches", "moe", "ranks"]) {
    for (const width of [800, 1400]) {
        for (const colorScheme of ["light", "dark"]) {
            await picture(`${page}-${width}-${colorScheme}`, page, colorScheme, width, 900, () => ({ fullPage: true }));
        }
    }
}
await opened.close();
