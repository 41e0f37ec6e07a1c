// Tests pages in a headless browser. Usage: node page.mjs MODULES BROWSER FOLDER. FOLDER contains
// the pages, and for each page the report as JSON and as text. Prints failures, and exits with
// status 1 if there are any.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, browser, folder] = process.argv.slice(2);
const { chromium } = createRequire(pathToFileURL(modules + "/"))("playwright-core");

const TIMELINE = ".scroller canvas";
const opened = await chromium.launch({ executablePath: browser, args: ["--no-sandbox"], timeout: 180_000 });
const report = (name) => JSON.parse(readFileSync(`${folder}/${name}.json`, "utf8"));

/**
 * Opens a page and runs the function `look` on it. Checks that the page reported no errors and
 * requested nothing except itself.
 */
async function open(name, options, look) {
    const page = await opened.newPage({ viewport: { width: 1280, height: 800 }, reducedMotion: "reduce", ...options });
    page.setDefaultTimeout(180_000);
    const said = [];
    const url = pathToFileURL(`${folder}/${name}.html`).href;
    page.on("console", (message) => said.push(`${message.type()}: ${message.text()}`));
    page.on("pageerror", (error) => said.push(String(error)));
    page.on("dialog", (dialog) => { said.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
    page.on("request", (request) => { if (request.url() !== url) said.push(`request: ${request.url()}`); });
    await page.goto(url);
    await page.waitForSelector("html[data-ready]");
    await still(page);
    await look(page);
    assert.deepEqual(said, [], name);
    await page.close();
    console.log(`${name}: looked at`);
}

const still = (page) => page.waitForSelector(TIMELINE + "[data-still=true]");

/** Returns the time span that the timeline currently shows, in ns from the start of the first iteration. */
async function seen(page) {
    // Wait for two animation frames, after which the latest change has been drawn.
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    await still(page);
    const { from, to } = await page.$eval(TIMELINE, (canvas) => ({ ...canvas.dataset }));
    return { from: Number(from), to: Number(to), span: to - from };
}

/**
 * Checks that a duration on the page stands for `ns` nanoseconds, within the precision of its
 * digits.
 */
function isTime(text, ns) {
    const [, number, unit] = /^([\d.]+) (ns|µs|ms|s)$/.exec(text) ?? [];
    assert.ok(number, `"${text}" is no duration`);
    const factor = { ns: 1, "µs": 1e3, ms: 1e6, s: 1e9 }[unit];
    const places = number.split(".")[1]?.length ?? 0;
    assert.ok(Math.abs(Number(number) * factor - ns) <= (factor / 10 ** places) * 0.5001, `${text} is not ${ns} ns`);
}

/**
 * Checks that a percentile on the page stands for `ns` nanoseconds; if `ns` is null, because there
 * are too few values, it must be a dash.
 */
const isPercentile = (text, ns) => (ns === null ? assert.equal(text, "–") : isTime(text, ns));

async function figures(page, process) {
    const { inside } = process;
    const digits = inside.per_second < 9.995 ? 2 : inside.per_second < 99.95 ? 1 : 0;
    assert.ok(inside.per_second < 999, "it is shown without separators");
    assert.equal(await page.textContent("#rate"), inside.per_second.toFixed(digits));
    for (const quantile of ["p50", "p90", "p99", "max"]) {
        isPercentile(await page.textContent(`#${quantile}`), inside.time[`${quantile}_ns`]);
    }
    const drawn = await page.$eval("[data-iterations]", (chart) => chart.dataset.iterations);
    assert.equal(Number(drawn), inside.iterations);
}

/**
 * Returns the texts of the cells of a table, by row. The table is found by the title of its card.
 */
const rowsOf = (page, title) => page.$$eval("section.card", (cards, title) => {
    const found = cards.find((card) => card.querySelector("h2")?.textContent === title);
    return [...(found?.querySelectorAll("tbody tr") ?? [])].map((row) => [...row.cells].map((cell) => cell.textContent.replaceAll("\u00a0", " ")));
}, title);

/**
 * Returns the table of slow iterations. It has a group of rows for each iteration, with a row for
 * each cause.
 */
async function slowRows(page) {
    const groups = [];
    for (const cells of await rowsOf(page, "Slowest iterations")) {
        if (cells.length === 5) groups.push({ n: Number(cells[0]), took: cells[1], longer: cells[2], causes: [] });
        groups[groups.length - 1].causes.push(cells.slice(-2));
    }
    return groups;
}

/** Scrolls to the timeline, and returns the position and size of its canvas. */
async function boxOf(page) {
    await page.$eval(".timeline", (timeline) => timeline.scrollIntoView());
    return page.locator(TIMELINE).boundingBox();
}

/**
 * Moves the pointer downward in the timeline, at the time `moment`, until the tooltip begins with
 * `name`.
 */
async function hover(page, moment, name) {
    const { from, to } = await seen(page);
    const box = await boxOf(page);
    const gutter = 158;
    const x = box.x + gutter + ((moment - from) / (to - from)) * (box.width - gutter);
    for (let y = box.y + 30; y < box.y + box.height; y += 5) {
        await page.mouse.move(x, y);
        const tip = await page.$eval(".timeline .tip", (tip) => (tip.hidden ? "" : tip.querySelector("b").textContent));
        if (tip.startsWith(name)) return page.textContent(".timeline .tip");
    }
    assert.fail(`nothing at ${moment} is ${name}`);
}

/** Returns the lines of a report's text output. */
const text = (name) => readFileSync(`${folder}/${name}.txt`, "utf8").split("\n");

/** Returns the cells of the first line of a report's text that begins with `start`. */
function line(lines, start) {
    const found = lines.find((line) => line.trimStart().startsWith(start));
    assert.ok(found, `no line "${start}"`);
    return found.trim().split(/ {2,}/);
}

/** Returns the cells of the row of a report's text whose last cell is `name`. */
function rowNamed(lines, name) {
    const rows = lines.map((line) => line.trim().split(/ {2,}/));
    const found = rows.find((row) => row.length > 1 && row.at(-1) === name);
    assert.ok(found, `no row of "${name}"`);
    return found;
}

const percent = (part) => `${(part * 100).toFixed(1)} %`;

/** Returns the shares in the bar of a ledger (time by cause), by the name of the cause. */
const barOf = (page, of) => page.$$eval(`.ledger > [data-of=${of}] .legend li:has(b)`, (parts) =>
    Object.fromEntries(parts.map((part) => [part.querySelector("span").firstChild.textContent.trim(), part.querySelector("b").textContent])));

// Test: the page's script formats numbers in the same way as the text output.
const { transformSync } = createRequire(pathToFileURL(modules + "/"))("esbuild");
const source = readFileSync(new URL("../src/format.ts", import.meta.url), "utf8");
const format = await import(`data:text/javascript,${encodeURIComponent(transformSync(source, { loader: "ts" }).code)}`);
for (const [how, ...rest] of JSON.parse(readFileSync(`${folder}/numbers.json`, "utf8"))) {
    assert.equal(format[how](...rest.slice(0, -1)), rest.at(-1), `${how}(${rest})`);
}

// Test of ranks that are late at collectives: the table, the map, and the tooltip.
const job = report("job");
await open("job", {}, async (page) => {
    const { collectives } = job;
    assert.equal(collectives.ranks[5].last, 20);
    const rows = await rowsOf(page, "Who waits for whom");
    assert.deepEqual(rows.map(([name, last]) => [name, last]), [["rank 5", "20"]]);
    isTime(rows[0][2], collectives.ranks[5].iteration_without_ns);
    assert.match(rows[0][3], /^\+60\.0 ms GC/);
    const last = JSON.parse(await page.$eval("[data-last]", (map) => map.dataset.last));
    assert.deepEqual(last, collectives.iterations.map((one) => one.last ?? job.processes.length));
    const canvas = page.locator("[data-last] canvas");
    await canvas.scrollIntoViewIfNeeded();
    const box = await canvas.boundingBox();
    const [left, top, bottom] = [34, 5, 20];
    const at = (rank, step) => [box.x + left + ((step + 0.5) / collectives.iterations.length) * (box.width - left),
        box.y + top + ((rank + 0.5) / job.processes.length) * (box.height - top - bottom)];
    await page.mouse.move(...at(5, 12));
    const tip = (await page.textContent("[data-last] .tip")).replaceAll("\u00a0", " ");
    assert.match(tip, /^iteration 112rank 5 came 3\.\d\d ms later than the median rankrank 5 held the others up: \+3\.\d\d ms GC$/);
    await page.mouse.click(...at(5, 12));
    await page.waitForSelector("html[data-ready='5']");
});

const ranks = report("ranks");

/** Shows the process at the index `place`. */
async function choose(page, place) {
    await page.selectOption("#process", String(place));
    await page.waitForSelector(`html[data-ready="${place}"]`);
    await still(page);
}

await open("ranks", { colorScheme: "light" }, async (page) => {
    // The page shows first the rank that the first finding names.
    const named = ranks.findings.filter(({ verdict }) => verdict === "yes").map(({ evidence }) => /^rank (\d)/.exec(evidence)).find((found) => found);
    assert.ok(Number(named[1]) > 0, "it is another one than the first");
    assert.equal(await page.$eval("html", (html) => html.dataset.ready), named[1]);
    await choose(page, 0);
    await figures(page, ranks.processes[0]);
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= 1280, `it is ${width} wide`);

    // The findings that hold are in the same order as in the report. The other findings are in a
    // folded list.
    const yes = ranks.findings.filter((finding) => finding.verdict === "yes");
    assert.ok(yes.length > 0);
    const advice = await page.$$eval(".findings-card > .findings .advice", (all) => all.map((one) => one.textContent.replaceAll("\u00a0", " ")));
    assert.deepEqual(advice, yes.map((finding) => finding.advice));
    const folded = await page.$$eval(".findings-card details .finding", (all) => all.length);
    assert.equal(folded, ranks.findings.length - yes.length);

    // The chart of ranks marks the slowest rank of each iteration.
    assert.deepEqual(JSON.parse(await page.$eval("[data-slowest]", (chart) => chart.dataset.slowest)), ranks.skew.slowest);

    // The table of GPU metrics has a row for each sampled metric.
    const metrics = ranks.processes[0].gpu_metrics;
    assert.ok(metrics.length > 0);
    const rows = await rowsOf(page, "GPU metrics");
    assert.deepEqual(rows.map(([name, , , samples]) => [name, samples]),
        metrics.map((metric) => [`GPU ${metric.device} ${metric.metric}`, metric.samples.toLocaleString("en-US")]));

    // Test of tooltips. The timeline first shows the slowest iteration. The duration of its garbage collection is
    // known.
    const { iterations } = ranks.processes[0].windows[0];
    const slow = iterations.find((iteration) => iteration.n === 117);
    const begin = slow.start_ns - iterations[0].start_ns;
    const first = await seen(page);
    assert.ok(first.from < begin && first.to > begin + slow.dur_ns);
    const collection = await hover(page, begin + 4e6, "GC");
    assert.match(collection, /^GC gen2GC · 9\.30 ms · 1,957 objects collected · 90\.0 µs into iteration 117$/);
    const [, took, launches] = /^iteration 117(\S+ ms) · (\d+) launches/.exec(await hover(page, begin + 4e6, "iteration"));
    isTime(took, slow.dur_ns);
    assert.equal(Number(launches), slow.launches);
    assert.match(await hover(page, begin + slow.dur_ns / 2, "GPU 0 DRAM bandwidth"), /\d+\.0 %, the mean of 10\.0 ms$/);

    // Test of the keys and the wheel that move the visible part.
    const canvas = page.locator(TIMELINE);
    await canvas.focus();
    await page.mouse.move(0, 0);
    const key = async (name) => { await page.keyboard.press(name); return seen(page); };
    let before = await key("0");
    const last = iterations[iterations.length - 1];
    assert.ok(before.from <= 0 && before.to >= last.start_ns + last.dur_ns - iterations[0].start_ns);
    for (const [closer, further] of [["w", "s"], ["+", "-"], ["ArrowUp", "ArrowDown"]]) {
        const near = await key(closer);
        assert.ok(near.span < before.span * 0.8 && near.from > before.from && near.to < before.to, closer);
        const far = await key(further);
        assert.ok(far.span > near.span * 1.2, further);
        before = far;
    }
    before = await key("w");
    for (const [right, left] of [["d", "a"], ["ArrowRight", "ArrowLeft"]]) {
        const after = await key(right);
        assert.ok(after.from > before.from && Math.abs(after.span - before.span) < 10, right);
        before = await key(left);
        assert.ok(before.from < after.from, left);
    }
    const box = await boxOf(page);
    await page.mouse.move(box.x + box.width / 2, box.y + 40);
    await page.keyboard.down("Control");
    await page.mouse.wheel(0, -200);
    await page.keyboard.up("Control");
    const wheeled = await seen(page);
    assert.ok(wheeled.span < before.span * 0.8, "the wheel");
    await page.mouse.down();
    await page.mouse.move(box.x + box.width / 2 + 200, box.y + 40, { steps: 4 });
    await page.mouse.up();
    assert.ok((await seen(page)).from < wheeled.from, "dragging");
    await key("]");
    assert.match(await page.textContent(".status"), /^iteration \d+ /);

    // In the timeline, the search for a kernel's name finds as many kernels as the report counts under that name.
    await page.fill(".timeline input", "SM90_XMMA");
    const kernel = ranks.processes[0].kernels.find((kernel) => kernel.name.startsWith("sm90_xmma"));
    assert.equal(await page.textContent(".hits"), `${kernel.count} found`);
    await page.press(".timeline input", "Enter");
    assert.match(await page.textContent(".status"), /^sm90_xmma.* kernel · /);
    await page.press(".timeline input", "Escape");
    assert.equal(await page.textContent(".hits"), "");

    // When the second window is chosen, the timeline shows it.
    await page.selectOption(".timeline select", "1");
    const { windows } = ranks.processes[0];
    const second = windows[1].iterations[0].start_ns - iterations[0].start_ns;
    const there = await seen(page);
    assert.ok(there.from <= second && there.from > second - there.span * 0.1);

    // Other ranks can be chosen in the list and in the table of ranks. A kernel of rank 3 has a
    // name that would end the script if it were not escaped.
    for (const rank of [2, 3]) {
        if (rank === 2) await page.selectOption("#process", "2");
        else await page.click(".ranks button:has-text('rank 3')");
        await page.waitForSelector(`html[data-ready="${rank}"]`);
        await figures(page, ranks.processes[rank]);
        assert.equal(await page.textContent(".ranks [aria-current]"), `rank ${rank}`);
    }
    const names = await page.$$eval("td .name", (names) => names.map((name) => name.title));
    const hostile = ranks.processes[3].kernels.find((kernel) => kernel.name.includes("</script>"));
    const escape = (c) => c === "\n" ? "\\n" : `\\u{${c.codePointAt(0).toString(16)}}`;
    const shown = hostile.name.replace(/[\u0000-\u001f\u007f-\u009f\u2028-\u202e]/g, escape);
    assert.ok(names.includes(shown), `no ${shown}`);
    assert.equal(await page.$("img"), null, "no name is markup");
    const isolated = await page.$$eval("td .name", (names) => names.every((name) => getComputedStyle(name).unicodeBidi === "isolate"));
    assert.ok(isolated, "no name turns the text around it");

    // Every control must have a label for screen readers.
    const nameless = await page.$$eval("button, select, input, canvas[tabindex], [role=img]", (all) => all
        .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim())).map((one) => one.outerHTML));
    assert.deepEqual(nameless, []);
});

// Test: page, text and JSON have the same figures.
await open("one", {}, async (page) => {
    const lines = text("one");
    const one = report("one");
    const [process] = one.processes;
    const { inside } = process;

    // Compares the times of iterations on the page with those in the text and the JSON.
    assert.ok(lines.some((line) => line.endsWith(`, ${inside.per_second.toFixed(0)} a second`)));
    assert.equal(await page.textContent("#rate"), inside.per_second.toFixed(0));
    const times = await page.$$eval("#quantiles tbody tr", (rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
    // Text and page show the same numbers of iterations. A row without a number is based on the
    // same iterations as the row above.
    const taken = inside.iterations - inside.host_iterations;
    assert.ok(taken > 0 && inside.gpu_iterations === inside.host_iterations);
    const rows_of_times = [
        [`iteration (${inside.iterations})`, inside.time], [`without kernels (${inside.host_iterations})`, inside.without_kernels],
        ["GPU span", inside.gpu], ["waits for the GPU", inside.wait], [`with kernels (${taken})`, inside.with_kernels],
    ];
    assert.deepEqual(times.map(([name]) => name), rows_of_times.map(([name]) => name));
    for (const [name, of_name] of rows_of_times) {
        const [, ...cells] = times.find(([other]) => other === name) ?? [];
        const [in_text, ...said] = line(lines, name);
        assert.equal(in_text, name);
        assert.deepEqual(said.slice(0, 4), cells);
        ["p50", "p90", "p99", "max"].forEach((quantile, at) => isPercentile(cells[at], of_name[`${quantile}_ns`]));
    }
    assert.ok(inside.time.p90_ns !== null && inside.time.p99_ns === null, "of 51 there is no 99th percentile");

    // Compares the time by cause on the page with that in the text and the JSON.
    const share = (start) => line(lines, start).at(-1);
    assert.equal(inside.gpu_from, "events");
    assert.equal(share("waits for"), percent(inside.wait_share));
    assert.equal(share("GPU span"), percent(inside.gpu_share));
    for (const [of, rows] of Object.entries({ host: process.ledger.host, gpu: process.ledger.gpu })) {
        const shown = await barOf(page, of);
        assert.deepEqual(Object.keys(shown), rows.map(({ cause }) => cause));
        for (const { cause, share: part } of rows) assert.equal(shown[cause], part < 0.0005 ? "< 0.1 %" : percent(part));
        const sum = Object.values(shown).reduce((sum, part) => sum + Number.parseFloat(part), 0);
        assert.ok(Math.abs(sum - 100) < 1, JSON.stringify(shown));
    }

    // Compares the first row of each table on the page with the row of the same name in the text.
    const [kernel, part, , , mean, longest] = (await rowsOf(page, "Top kernels"))[0];
    assert.deepEqual(rowNamed(lines, kernel).slice(1, -1), [mean, longest, part]);
    const all = process.kernels.reduce((sum, kernel) => sum + kernel.total_ns, 0);
    assert.equal(part, percent(process.kernels[0].total_ns / all));
    isTime(mean, process.kernels[0].total_ns / process.kernels[0].count);
    const call = (await rowsOf(page, "CUDA calls"))[0];
    assert.deepEqual(line(lines, call[0]), call);
    assert.equal(call[1], (process.calls[0].count / inside.iterations).toFixed(2));
    for (const [start, title] of [["EngineCore.step", "Python functions"], ["schedule@engine", "NVTX ranges"]]) {
        const [name, , ...cells] = (await rowsOf(page, title))[0];
        assert.equal(name, start);
        assert.deepEqual(rowNamed(lines, start).slice(1, -1), cells);
    }
    const copies = await rowsOf(page, "Copies");
    assert.deepEqual(line(lines, "copies, in all: ")[0], `copies, in all: ${copies.map(([kind, count, bytes, , total]) => `${count} ${kind} of ${bytes} in ${total}`).join(", ")}`);
    const metrics = (await rowsOf(page, "GPU metrics")).map(([, mean]) => mean);
    assert.deepEqual(/SM busy (.*), tensor (.*), DRAM (.*)$/.exec(line(lines, "GPU 0: ")[0]).slice(1), metrics);
    assert.deepEqual(metrics, process.gpu_metrics.map(({ mean }) => percent(mean / 100)));
    const [layer, expert, idle, tokens] = (await rowsOf(page, "Learned router"))[0];
    const drawn = lines.some((line) => line.trimStart().startsWith(layer)) ? line(lines, layer) : null;
    if (drawn) assert.deepEqual([drawn[1], drawn.at(-2), drawn.at(-1)], [expert.replace(" ×", ""), idle, tokens.replace(",", "")]);

    // Compares the causes of slow iterations, and the findings, on the page with those in the text.
    const from = lines.findIndex((line) => line.startsWith("slowest iterations")) + 1;
    // In the text, a list that is longer than a line continues on the next line.
    const slow = lines.slice(from, lines.indexOf("", from)).join("\n").split(/\n  (?=\d)/).map((line) => line.trim().replace(/\n */g, " "));
    const groups = await slowRows(page);
    assert.deepEqual(groups.map(({ n }) => n), [...process.slowest].sort((a, b) => b.dur_ns - b.idle_ns - a.dur_ns + a.idle_ns).map(({ n }) => n));
    for (const [at, n] of [[0, 117], [1, 131]]) {
        const group = groups[at];
        assert.equal(group.n, n);
        const [in_text, took_in_text, said] = slow[at].split(/ {2,}/);
        assert.deepEqual([in_text, took_in_text], [String(group.n), group.took]);
        const causes = group.causes.map(([more, cause]) => (cause === "unexplained" ? `${cause} ${more}` : `${more} ${cause}`));
        assert.equal(`${group.longer}: ${causes.join(", ")}`, said);
    }
    assert.ok(groups[1].causes.some(([, cause]) => /^waiting for the GIL \(held by detokenizer\)/.test(cause)));
    const costs = await page.$$eval(".findings-card > .findings .loss", (all) => all.map((one) => one.textContent));
    const losses = one.findings.filter(({ verdict, loss }) => verdict === "yes" && loss !== null);
    assert.deepEqual(costs, losses.map(({ loss }) => `costs ${percent(loss)} of the time`));
    for (const { rule, loss } of losses.slice(0, 3)) line(lines, `${rule} (costs ${percent(loss)}`);
    const own = percent(process.own_cost_ns / inside.wall_ns);
    assert.ok(lines.some((line) => line.endsWith(`, the recorder took ${own} of the time`)), own);
    assert.ok((await page.textContent(".facts")).includes(`the recorder took${own} of the time`));
});

await open("ranks", {}, async (page) => {
    const lines = text("ranks");
    const often = lines.find((line) => / was the slowest in /.test(line));
    assert.ok((await page.textContent(".card:has(.ranks) .caption")).startsWith(`${often} iterations; `), often);
    const rows = await page.$$eval(".ranks tbody tr", (rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
    rows.forEach(([name, host, ...cells], rank) => {
        assert.equal(name, `rank ${rank}`);
        // Compares the columns of the table of ranks that follow the process ID with those in the text.
        const said = lines.find((line) => line.trimStart().startsWith(`${rank} ${host} `)).trim().split(/ +/);
        assert.equal(said.slice(3).join(" "), cells.join(" "));
        const { inside, ledger } = report("ranks").processes[rank];
        assert.deepEqual([cells[0], cells[5]], [String(inside.iterations), percent(inside.gpu_share)]);
        assert.deepEqual([ledger.iterations, ledger.gpu_iterations], [inside.iterations, inside.gpu_iterations]);
    });
    // Page and text both say which iterations the shares in the table of ranks are based on.
    const captions = await page.$$eval(".ranks .caption", (all) => all.map((one) => one.textContent));
    const under = captions.filter((caption) => /^(GPU span|waits): /.test(caption));
    assert.equal(under.length, 2, captions.join());
    for (const caption of under) assert.ok(lines.includes(caption), caption);
});

/** Returns the contrast ratio of two colours according to WCAG. */
function contrast(a, b) {
    const light = (colour) => {
        const [r, g, b] = colour.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const [dark, bright] = [light(a), light(b)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
}

const KINDS = ["range", "python", "call", "launch", "wait", "copy", "set", "gc", "gil-wait", "gil-hold", "step", "kernel"];
for (const scheme of ["light", "dark"]) {
    await open("ranks", { colorScheme: scheme }, async (page) => {
        const colours = (names) => page.evaluate((names) => {
            const probe = document.body.appendChild(document.createElement("span"));
            const found = names.map((name) => {
                probe.style.color = `var(--${name})`;
                return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
            });
            probe.remove();
            return found;
        }, names);
        const look = async (dark) => {
            const [surface, back, ink, muted, accent, bad, on, ...kinds] =
                await colours(["surface", "back", "ink", "muted", "accent", "bad", "event-ink", ...KINDS]);
            assert.equal(back[0] < 128, dark, "the theme");
            for (const [name, colour] of Object.entries({ ink, muted, accent, bad })) {
                for (const below of [surface, back]) assert.ok(contrast(colour, below) >= 4.5, `${scheme}: ${name} on ${below}`);
            }
            kinds.forEach((kind, at) => assert.ok(contrast(on, kind) >= 4.5, `${scheme}: text on ${KINDS[at]}`));
            return surface;
        };
        await look(scheme === "dark");
        await page.click(".theme");
        await seen(page);
        const surface = await look(scheme !== "dark");
        const pixel = await page.$eval(TIMELINE, (canvas) => [...canvas.getContext("2d").getImageData(2, canvas.height - 3, 1, 1).data.slice(0, 3)]);
        assert.deepEqual(pixel, surface, "the timeline has the theme's colours");
    });
}

/** Searches for a name, selects the `nth` matching event, and returns its description. */
async function select(page, name, nth = 1) {
    await page.fill(".timeline input", name);
    for (let times = 0; times < nth; times++) await page.press(".timeline input", "Enter");
    await page.press(".timeline input", "Escape");
    return page.textContent(".status");
}

const arrows = async (page) => {
    await seen(page);
    return Number(await page.$eval(TIMELINE, (canvas) => canvas.dataset.arrows));
};

// Test of the links between a call and the kernels that it launched.
await open("ranks", {}, async (page) => {
    await choose(page, 0);
    assert.match(await select(page, "cuGraphLaunch"), /^cuGraphLaunch launch · 12\.0 µs · launched 2 kernels · /);
    await page.focus(TIMELINE);
    await page.keyboard.press("l");
    const description = /^void vllm::rms_norm_kernel.* kernel · 3\.00 µs · launched by cuGraphLaunch on EngineCore, (.*) before it began · /;
    assert.match(await page.textContent(".status"), description);
    assert.equal(await arrows(page), 1);
    // The key `l` leads back to the call. At this zoom, both kernels of the call are visible.
    await page.keyboard.press("l");
    assert.match(await page.textContent(".status"), /^cuGraphLaunch launch/);
    assert.ok((await arrows(page)) >= 1);
    await page.keyboard.press("Escape");
    assert.equal(await arrows(page), 0);
    // A kernel outside graphs is launched by a call of its own.
    for (const nth of [1, 7]) {
        const kernel = await select(page, "ncclDevKernel", nth);
        assert.match(kernel, /launched by cuLaunchKernelEx on EngineCore, [\d.]+ (µs|ms) before it began/);
        await page.focus(TIMELINE);
        await page.keyboard.press("l");
        assert.match(await page.textContent(".status"), /^cuLaunchKernelEx launch · 5\.00 µs · launched ncclDevKernel/);
        assert.equal(await arrows(page), 1);
    }
    // If the call or the kernel of an arrow is not visible, the arrow is not drawn.
    await page.keyboard.press("f");
    assert.equal(await arrows(page), 0);
    // In iterations without recorded kernels, it is not known which kernels a call launched.
    assert.match(await select(page, "cuGraphLaunch", 30), /^cuGraphLaunch launch · 12\.0 µs · [\d.]+ ms into iteration 129$/);
    assert.equal(await arrows(page), 0);
});

/**
 * Returns the colours of some cells in the map of experts. A cell is given by its layer and expert.
 */
const colours = (page, layers, experts, cells) => page.$eval(".map canvas", (canvas, [layers, experts, cells]) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const ratio = devicePixelRatio;
    const wide = (canvas.clientWidth - 34) / experts;
    const high = (canvas.clientHeight - 25) / layers;
    return cells.map(([layer, expert]) => {
        const [x, y] = [34 + (expert + 0.5) * wide, 5 + (layer + 0.5) * high].map((at) => Math.floor(at * ratio));
        return [...data.slice((y * canvas.width + x) * 4).slice(0, 3)];
    });
}, [layers, experts, cells]);

const css = (page, name) => page.evaluate((name) => {
    const probe = document.body.appendChild(document.createElement("span"));
    probe.style.color = `var(--${name})`;
    const found = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
    probe.remove();
    return found;
}, name);

// Test of learned routers: the table of layers, and the map of experts in the colours of both
// themes.
const moe = report("moe").processes[0];
for (const colorScheme of ["light", "dark"]) {
    await open("moe", { colorScheme }, async (page) => {
        assert.equal(await page.textContent(".wrong"), "output is intentionally wrong: the routers are replaced");
        // The simulated engine could not load CUPTI. So in place of the table of kernels, the page gives the reason
        // why there are none.
        const refused = page.locator("section", { has: page.getByText("Top kernels", { exact: true }) });
        assert.equal(await refused.locator("p").textContent(), "no kernels: CUPTI took too long to load");
        const { layers } = moe.routing;
        const worst = layers.reduce((a, b) => (b.max_of_mean > a.max_of_mean ? b : a));
        const rows = () => page.$$eval(".layers tbody tr", (rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
        assert.equal((await rows()).length, 12);
        await page.click(".layers .more");
        const all = await rows();
        assert.equal(all.length, layers.length);
        // The number of GPUs that share the experts is not known, so there is no column for it.
        assert.deepEqual(all[0], [worst.name, `${worst.max_of_mean.toFixed(2)} ×`, `${worst.idle}`, worst.tokens.toLocaleString("en-US")]);
        const [even, idle] = [await css(page, "expert-even"), await css(page, "expert-idle")];
        const most = worst.experts.indexOf(Math.max(...worst.experts));
        const [same, none, busiest] = await colours(page, 60, 128, [[0, 77], [59, 3], [worst.layer, most]]);
        assert.deepEqual(same, even, "a layer whose experts have the same");
        assert.deepEqual(none, idle, "an expert that has nothing");
        const hot = await css(page, "expert-hot");
        const far = (a, b) => a.reduce((sum, value, at) => sum + Math.abs(value - b[at]), 0);
        assert.ok(far(busiest, hot) < far(busiest, even), `${busiest}`);
        await page.$eval(".map", (map) => map.scrollIntoView({ block: "center" }));
        const box = await page.locator(".map canvas").boundingBox();
        await page.mouse.move(box.x + 34 + ((box.width - 34) * 3.5) / 128, box.y + box.height - 22);
        assert.equal(await page.textContent(".map .tip"), `${layers[59].name}expert 3: 0.00 × the mean, 0 tokens`);
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(width <= 1280, `it is ${width} wide`);
    });
}

/**
 * Returns the colour of a chart's canvas at a position of the drawing area; null if nothing is
 * drawn at that position.
 */
const pixelOf = (page, chart, x, y) => page.$eval(chart, (chart, [x, y]) => {
    const canvas = chart.querySelector("canvas");
    const over = chart.querySelector(".u-over");
    const at = [over.offsetLeft + x, over.offsetTop + y].map((at) => Math.round(at * devicePixelRatio));
    // Read the pixel from a copy, because reading the canvas itself repeatedly causes a warning of
    // the browser.
    const copy = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, -at[0], -at[1]);
    const { data } = copy.getImageData(0, 0, 1, 1);
    return data[3] > 0 ? [...data.slice(0, 3)] : null;
}, [x, y]);

// Test: only some iterations have GPU times. In the chart, the line of GPU times has gaps at the other iterations,
// and a measured iteration without measured neighbours is a point.
for (const [colorScheme, width] of [["light", 800], ["dark", 1400]]) {
    await open("gaps", { colorScheme, viewport: { width, height: 900 } }, async (page) => {
        const [process] = report("gaps").processes;
        const all = process.windows[0].iterations;
        const timed = all.filter((one) => one.gpu_ns !== null).map((one) => one.n);
        assert.deepEqual(timed, [100, 101, 102, 103, 104, 105, 106, 107, 116]);
        const chart = "[data-iterations]";
        const colour = await css(page, "gpu-line");
        const drawn = (n) => page.$eval(chart, (chart, [part, colour]) => {
            const canvas = chart.querySelector("canvas");
            const over = chart.querySelector(".u-over");
            const [left, wide] = [over.offsetLeft + part * over.clientWidth - 2, 4].map((x) => Math.round(x * devicePixelRatio));
            const copy = new OffscreenCanvas(wide, canvas.height).getContext("2d", { willReadFrequently: true });
            copy.drawImage(canvas, -left, 0);
            const { data } = copy.getImageData(0, 0, wide, canvas.height);
            for (let at = 0; at < data.length; at += 4) if (colour.every((one, rgb) => data[at + rgb] === one)) return true;
            return false;
        }, [(n - 100 + 0.5) / 17, colour]);
        for (const { n } of all) assert.equal(await drawn(n), timed.includes(n), `iteration ${n}`);
        const legends = (await page.$$eval(".legend li", (all) => all.map((one) => one.textContent)));
        for (const said of ["GPU time; no line: not taken", "measured in 9 of 17 iterations"]) assert.ok(legends.includes(said), legends.join());
        const { width: across } = await page.locator(`${chart} .u-over`).boundingBox();
        for (const [n, says] of [[104, /GPU time \d/], [111, /GPU time not taken/]]) {
            await page.locator(`${chart} .u-over`).hover({ position: { x: ((n - 100 + 0.5) / 17) * across, y: 60 } });
            assert.match(await page.textContent(`${chart} .tip`), says);
            await page.locator(`${chart} .u-over`).click({ position: { x: ((n - 100 + 0.5) / 17) * across, y: 60 } });
            assert.match(await page.textContent(".timeline"), says);
        }
        // Text and page have the same label for the GPU times.
        const rows = await page.$$eval("#quantiles th", (all) => all.map((one) => one.textContent));
        assert.ok(rows.includes("GPU span (9)") && line(text("gaps"), "GPU span (9)"), rows.join());
    });
}

// Test of batches: each phase has its own colour, and idle iterations do not count in figures.
const PHASE_COLOURS = ["prefill", "decode", "mixed", "idle"].map((phase) => `phase-${phase}`);
for (const colorScheme of ["light", "dark"]) {
    await open("batches", { colorScheme }, async (page) => {
        const [process] = report("batches").processes;
        const all = process.windows[0].iterations;
        const surface = await css(page, "surface");
        for (const name of PHASE_COLOURS) assert.ok(contrast(await css(page, name), surface) >= 3, `${colorScheme}: ${name}`);
        const lines = text("batches");
        const left_out = await page.textContent("#uncounted");
        assert.ok(lines.includes(left_out), left_out);
        assert.equal(left_out, `left out: ${all.filter((one) => !one.qualifies).length} idle iterations`);

        // Checks the legend of phases, and the colours of the bars in the chart of iterations.
        const legend = (card) => page.$$eval(`section.card:has(${card}) .phases li[data-phase]`, (all) => all.map((one) => [one.dataset.phase, one.querySelector("b").textContent]));
        const counts = (phases) => phases.map((phase) => [phase, String(all.filter((one) => one.batch.phase === phase).length)]);
        const chart = "[data-iterations]";
        assert.deepEqual(await legend(chart), counts(["prefill", "mixed", "decode", "idle"]));
        assert.deepEqual(await legend(".batches"), counts(["prefill", "mixed", "decode"]));
        const wide = await page.$eval(`${chart} .u-over`, (over) => over.clientWidth / 120);
        const high = await page.$eval(`${chart} .u-over`, (over) => over.clientHeight);
        const bar = (n) => pixelOf(page, chart, (n - 100 + 0.5) * wide, high - 3);
        for (const phase of ["prefill", "mixed", "decode"]) {
            const { n } = all.find((one) => one.batch.phase === phase);
            assert.deepEqual(await bar(n), await css(page, `phase-${phase}`), `${phase} ${n}`);
        }
        const idle = all.find((one) => !one.qualifies).n;
        assert.notDeepEqual(await bar(idle), await css(page, "phase-idle"), "it is pale");
        assert.notEqual(await bar(idle), null);
        await page.locator(`${chart} .u-over`).hover({ position: { x: (idle - 100 + 0.5) * wide, y: 60 } });
        assert.match(await page.textContent(`${chart} .tip`), new RegExp(`^iteration ${idle} · .* · left outidle: 0 requests, 0 tokens`));

        // The timeline's status line describes the batch in the same words as the chart's tooltip.
        await page.locator(`${chart} .u-over`).click({ position: { x: (idle - 100 + 0.5) * wide, y: 60 } });
        await seen(page);
        assert.match(await page.textContent(".status"), new RegExp(`^iteration ${idle} .* · idle: 0 requests, 0 tokens · left out of the figures$`));

        // Checks the chart of time against number of tokens.
        assert.equal(Number(await page.$eval("[data-points]", (chart) => chart.dataset.points)), all.filter((one) => one.batch.tokens > 0).length);
        const most = all.reduce((a, b) => (b.batch.tokens > a.batch.tokens ? b : a));
        const over = await page.$eval("[data-points] .u-over", (over) => [over.clientWidth, over.clientHeight]);
        const least = Math.min(...all.filter((one) => one.batch.tokens > 0).map((one) => one.batch.tokens)) / 1.5;
        const x = (over[0] * Math.log(most.batch.tokens / least)) / Math.log((most.batch.tokens * 1.5) / least);
        const y = over[1] * (1 - most.dur_ns / (process.inside.time.max_ns * 1.12));
        await page.locator("[data-points] .u-over").hover({ position: { x, y } });
        const { requests, tokens } = most.batch;
        assert.match(await page.textContent("[data-points] .tip"),
            new RegExp(`^iteration ${most.n} · .*prefill: ${requests} requests?, ${tokens.toLocaleString("en-US")} tokens$`));

        // The table of batches contains the report's figures.
        const rows = await page.$$eval("#batches tbody tr", (rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
        const expected = process.phases.flatMap((phase) => [phase, ...(phase.sizes.length > 1 ? phase.sizes : [])]);
        assert.deepEqual(rows.map(([name, , iterations]) => [name, iterations]), expected.map((of) => [of.phase ?? "", String(of.iterations)]));
        rows.forEach((cells, at) => ["p50_ns", "p90_ns", "p99_ns", "max_ns"].forEach((key, column) => isPercentile(cells[3 + column], expected[at].time[key])));
        const decode = process.phases.find((phase) => phase.phase === "decode");
        assert.deepEqual(line(lines, `decode (${decode.iterations})`).slice(1, 5), rows.find(([name]) => name === "decode").slice(3, 7));

        // Checks that the table of slow iterations names the batch as the cause for an iteration with a large
        // batch.
        const large = process.slowest.findIndex(({ batch }) => batch.phase === "prefill");
        const { n, batch } = process.slowest[large];
        const slow = (await slowRows(page))[large];
        assert.equal(slow.n, n);
        const why = new RegExp(`^(GPU work|waiting for the GPU: \\w+) \\(prefill of ${batch.tokens} tokens`);
        assert.ok(slow.causes.some(([, cause]) => why.test(cause)), JSON.stringify(slow));

        // Hides a phase by its legend button, and then switches the chart to colours by cause.
        const prefill = all.find((one) => one.batch.phase === "prefill").n;
        await page.click(`section.card:has(${chart}) [data-phase=prefill] button`);
        assert.equal(await page.$eval(":focus", (focused) => focused.getAttribute("aria-pressed")), "false");
        assert.equal(await bar(prefill), null);
        await page.click(`section.card:has(.batches) [data-phase=prefill] button`);
        assert.deepEqual(await bar(prefill), await css(page, "phase-prefill"));
        await page.click(".choice button:has-text('cause')");
        assert.equal(await page.locator(`section.card:has(${chart}) .phases`).count(), 0);
        assert.notDeepEqual(await bar(prefill), await css(page, "phase-prefill"));
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(width <= 1280, `it is ${width} wide`);
    });
}

// Test: in a chart of ten thousand iterations, each phase is still visible.
await open("long", {}, async (page) => {
    const colours = [];
    for (const phase of ["prefill", "decode", "mixed"]) colours.push((await css(page, `phase-${phase}`)).join());
    const seen = await page.$eval("[data-iterations] canvas", (canvas) => {
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const counts = {};
        for (let at = 0; at < data.length; at += 4) {
            const key = data.slice(at, at + 3).join();
            counts[key] = (counts[key] ?? 0) + 1;
        }
        return counts;
    });
    for (const one of colours) assert.ok(seen[one] > 300, `${one}: ${seen[one]} pixels`);
});

// Test: if batches are not known, the page has no panels about batches.
await open("one", {}, async (page) => {
    assert.equal(await page.locator("#batches, .phases, #uncounted, .choice button:visible").count(), 0);
});

// Test: without other information, the experts are divided among as many GPUs as there are ranks;
// and if no tokens were counted, there is no section about routers.
await open("ranks", {}, async (page) => {
    await choose(page, 0);
    const { layers } = ranks.processes[0].routing;
    const heads = await page.$$eval(".layers th", (heads) => heads.map((head) => head.textContent));
    assert.deepEqual(heads, ["layer", "busiest expert", "busiest of 4 GPUs", "idle experts", "tokens"]);
    const worst = [...layers].sort((a, b) => b.max_of_mean - a.max_of_mean)[0];
    const on_four = worst.gpus.find(({ gpus }) => gpus === 4).max_of_mean;
    assert.equal(await page.textContent(".layers tbody tr td:nth-child(3)"), `${on_four.toFixed(2)} ×`);
    assert.equal(await page.locator(".wrong").count(), 0);
    await page.selectOption("#process", "2");
    await page.waitForSelector('html[data-ready="2"]');
    assert.equal(await page.locator(".heat").count(), 0);
});

await open("many", {}, async (page) => {
    await figures(page, report("many").processes[0]);
    const events = Number(/^([\d,]+) of [\d,]+ events/.exec(await page.textContent(".timeline > .caption"))[1].replaceAll(",", ""));
    assert.ok(events > 480_000 && events <= 500_000, `${events} events`);
    await page.focus(TIMELINE);
    await page.keyboard.press("0");
    const whole = await seen(page);
    for (let times = 0; times < 12; times++) await page.keyboard.press("w");
    assert.ok((await seen(page)).span < whole.span / 50);
    // The links between calls and kernels work on a page with very many events, too.
    assert.match(await select(page, "cuLaunchKernelEx", 3), /launched /);
    await page.focus(TIMELINE);
    await page.keyboard.press("l");
    assert.match(await page.textContent(".status"), /launched by cuLaunchKernelEx on EngineCore/);
    assert.equal(await arrows(page), 1);
    const took = await page.evaluate(() => Math.round(performance.getEntriesByName("first-contentful-paint")[0].startTime));
    console.log(`first paint with ${events} events: ${took} ms`);
});

// Test of sampled stacks: the width of a function shows its number of samples, a click or a key
// zooms to it, and its name is readable in both themes.
for (const colorScheme of ["light", "dark"]) {
    await open("stacks", { colorScheme }, async (page) => {
        const { stacks, ledger, inside } = report("stacks").processes[0];
        const { tree, functions, counts } = stacks;
        assert.ok(stacks.told_apart && counts.rejected > 0);
        const caption = await page.textContent("#h-sampled-stacks + .caption");
        const hertz = (rate) => `${rate.toLocaleString("en-US")} Hz`;
        assert.ok(caption.startsWith(`${counts.samples.toLocaleString("en-US")} samples at ${hertz(stacks.achieved)} (5,000 Hz asked for), `), caption);
        assert.ok(caption.includes(`${percent(stacks.rejected_share)} rejected`), caption);

        const flame = (name) => page.locator(".flames button", { hasText: name }).first();
        const wide = async (name) => (await flame(name).boundingBox()).width;
        const node = (name) => tree.find((one) => one.name.startsWith(name));
        const all = await wide("EngineCoreProc.run");
        // The tree of functions does not contain waits for requests.
        assert.ok(!tree.some((one) => one.name.startsWith("Queue.get")));
        for (const name of ["EngineCore.step", "Scheduler.schedule", "LlamaModel.forward"]) {
            assert.ok(Math.abs(await wide(name) / all - node(name).samples / tree[0].samples) < 0.01, name);
        }
        const said = ({ name, share, samples, asleep }) =>
            `${name}: ${percent(share)}, ${samples.toLocaleString("en-US")} samples${asleep > 0 ? `, ${asleep.toLocaleString("en-US")} of them asleep` : ""}`;
        assert.equal(await flame("Sampler.forward").getAttribute("aria-label"), said(node("Sampler.forward")));
        assert.ok(node("Sampler.forward").asleep > 0);

        // A click on a function zooms to it: its callers stay visible, and its siblings disappear.
        await flame("Scheduler.schedule").click();
        assert.ok(Math.abs(await wide("Scheduler.schedule") - all) < 2);
        assert.equal(await flame("LlamaModel.forward").count(), 0);
        assert.equal(await page.textContent(".flames-said b"), said(node("Scheduler.schedule")));
        // Use keys to zoom to a callee, to show the whole tree again, and to move along the
        // callers.
        await page.keyboard.press("ArrowDown");
        assert.equal(await page.textContent(".flames-said b"), said(node("KVCacheManager")));
        await page.keyboard.press("Escape");
        assert.ok(await wide("Scheduler.schedule") < all * 0.9);
        assert.equal(await page.evaluate(() => document.activeElement.textContent), tree[0].name);
        // A pointer that rests on the flames must not replace what a key chose. A browser reports the
        // part that a redraw put below the pointer in a later frame, here after the key.
        await flame("Scheduler.schedule").hover();
        await flame("Scheduler.schedule").evaluate((part) => {
            part.focus();
            part.click();
            document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown" }));
        });
        await seen(page);
        assert.equal(await page.textContent(".flames-said b"), said(node("KVCacheManager")));
        await page.keyboard.press("Escape");
        for (const key of ["ArrowDown", "ArrowDown", "ArrowRight", "Enter"]) await page.keyboard.press(key);
        assert.equal(await page.getByRole("button", { name: "Show all" }).isVisible(), true);
        await page.getByRole("button", { name: "Show all" }).click();
        assert.ok(await wide("Scheduler.schedule") < all * 0.9);

        // The table of functions and the ledger (the bars of time by cause) contain the report's
        // functions.
        const rows = await rowsOf(page, "Sampled stacks");
        assert.deepEqual(rows.map(([name, share, samples]) => [name, share, samples]),
            functions.map((one) => [one.name, percent(one.share), one.samples.toLocaleString("en-US")]));
        const host = await barOf(page, "host");
        const python = ledger.host.filter((row) => row.kind === "python").slice(0, 2);
        assert.ok(python.length > 0);
        for (const row of python.filter((row) => row.cause in host)) assert.equal(host[row.cause], percent(row.share));
        assert.ok(python.some((row) => row.cause in host));

        // Names must have enough contrast with the colours of their functions.
        const contrast = await flame("LlamaModel.forward").evaluate((button) => {
            const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
            const light = (colour) => {
                canvas.fillStyle = colour;
                canvas.fillRect(0, 0, 1, 1);
                const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const { color, backgroundColor } = getComputedStyle(button);
            const [a, b] = [light(color), light(backgroundColor)].sort((a, b) => b - a);
            return (a + 0.05) / (b + 0.05);
        });
        assert.ok(contrast >= 4.5, `contrast ${contrast}`);

        // Waits for requests are drawn separately from the other time of iterations, so that the
        // chart agrees with the quantiles.
        assert.ok(inside.idle.max_ns >= 25e6 && inside.time.max_ns < 25e6);
        const { iterations } = report("stacks").processes[0].windows[0];
        const paused = iterations.findIndex((one) => one.idle_ns > 0);
        const over = page.locator("[data-iterations] .u-over");
        const { width } = await over.boundingBox();
        await over.hover({ position: { x: (paused + 0.5) / iterations.length * width, y: 100 } });
        const tip = await page.textContent("[data-iterations] .tip b");
        const [, took, waited] = /^iteration \d+ · (.*?) · and (.*?) waiting for requests$/.exec(tip) ?? [];
        assert.ok(took, tip);
        isTime(took, iterations[paused].dur_ns - iterations[paused].idle_ns);
        isTime(waited, iterations[paused].idle_ns);
        assert.ok((await page.textContent("main")).includes("waiting for requests"));
    });
}

// Test of layers: a table and an icicle with the report's figures, and a button that finds a
// layer's kernels in the timeline.
for (const colorScheme of ["light", "dark"]) {
    await open("layers", { colorScheme }, async (page) => {
        const { layer_patterns: together, layer_tree: each, layers_unknown: unknown, kernels } = report("layers").processes[0];
        const named = (rows, name) => rows.find((row) => row.name === name);
        const rows = await rowsOf(page, "Layers");
        const row = (name) => rows.find(([first]) => first === name);
        // A row's name leaves out the part that the row of the surrounding layer already shows. A row whose kernels
        // are all in a single row inside it is left out.
        for (const [shown, name] of [["model.layers.*", "model.layers.*"], [".mlp", "model.layers.*.mlp"], [".down_proj", "model.layers.*.mlp.down_proj"], ["sampler", "sampler"]]) {
            const of = named(together, name);
            const [, share, step, layers, one, gaps, count, total] = row(shown);
            assert.deepEqual([share, layers], [percent(of.share), of.layers.toLocaleString("en-US")], name);
            for (const [text, ns] of [[step, of.step_ns], [one, of.each_ns], [gaps, of.gap_ns], [total, of.gpu_ns]]) ns ? isTime(text, ns) : assert.equal(text, "0");
            assert.equal(Number(count), Number(of.kernels_a_step.toPrecision(3)), name);
        }
        assert.ok(!row("model") && !row("model.layers"));
        const card = page.locator("section.card", { has: page.locator("#h-layers") });
        const text = await card.textContent();
        assert.ok(text.includes(`layer not known: ${percent(unknown[0].share)}`) && text.includes(unknown[0].why), text);

        const block = (name) => card.locator(".flames button", { hasText: new RegExp(`^${name}$`) }).first();
        const wide = async (name) => (await block(name).boundingBox()).width;
        const all = await wide("model");
        assert.ok(Math.abs(await wide("mlp") / all - named(together, "model.layers.*.mlp").gpu_ns / named(together, "model").gpu_ns) < 0.01);
        assert.equal(await card.getByRole("button", { name: "Find in the timeline" }).isVisible(), false);
        await block("self_attn").click();
        // In the icicle, the parts next to `self_attn` together have less than a hundredth of the width.
        assert.ok(Math.abs(await wide("self_attn") / all - 1) < 0.01);
        const attention = named(together, "model.layers.*.self_attn");
        assert.ok((await page.textContent(".flames-said b")).startsWith(`model.layers.*.self_attn: ${percent(attention.share)}, `));

        // The search in the timeline finds a layer's kernels, and the description of a kernel names
        // its layer.
        const found = async () => Number((await page.textContent(".hits")).replace(/^.* of /, "").replace(/,/g, ""));
        await card.getByRole("button", { name: "Find in the timeline" }).click();
        assert.equal(await found(), attention.kernels);
        assert.match(await page.textContent(".timeline .status"), / in model\.layers\.0\.self_attn\.\w+ /);
        await page.fill(".timeline input", "layer:model.layers.1");
        const one = named(each, "model.layers.1");
        assert.equal(await page.textContent(".hits"), `${one.kernels.toLocaleString("en-US")} found`);
        assert.ok(kernels.length > 0 && one.kernels > 0);
        await select(page, "vllm::act_and_mul_kernel", named(together, "model.layers.*.mlp.act_fn").layers + 1);
        assert.match(await page.textContent(".timeline .status"), /its layer is not known/);

        // First show each layer separately, in the order of their numbers. Then show only the outer
        // layers.
        await card.getByRole("button", { name: "each layer" }).click();
        const numbers = await card.locator(".flames button", { hasText: /^\d+$/ }).allTextContents();
        assert.deepEqual(numbers, Array.from({ length: 12 }, (_, n) => String(n)));
        await card.locator("select").selectOption("1");
        assert.deepEqual((await rowsOf(page, "Layers")).map(([name]) => name), ["model", "sampler"]);
        assert.equal(await block("layers").count(), 0);
    });
}

// Test: functions are not listed if there are too few samples.
await open("few", {}, async (page) => {
    assert.match(await page.textContent("main"), /Functions are distinguished from 200 samples on/);
    assert.equal(await page.locator(".flames").count(), 0);
});

await open("nothing", {}, async (page) => {
    assert.match(await page.textContent("main"), /no iteration was recorded/);
});

// Test with a record of vLLM that contains sampled stacks.
for (const colorScheme of ["light", "dark"]) {
    await open("vllm-stacks", { colorScheme }, async (page) => {
        const [process] = report("vllm-stacks").processes;
        // The outermost callers are folded into one row. A click on that row unfolds them.
        const { tree } = process.stacks;
        const flames = page.locator(".flames button");
        const first = await flames.first().textContent();
        const [, callers] = /^(\d+) callers of [\d.]+ %, from /.exec(first) ?? [];
        assert.ok(Number(callers) >= 10, first);
        assert.equal(await page.locator(".flames button", { hasText: tree[0].name }).filter({ hasNotText: "callers" }).count(), 0);
        const before = await flames.count();
        const [folded, inner] = [await flames.nth(0).boundingBox(), await flames.nth(1).boundingBox()];
        assert.ok(inner.width >= folded.width * 0.97 && inner.y > folded.y);
        await flames.first().click();
        // When the outermost callers are unfolded, the functions next to them at the same depth are shown, too.
        assert.ok(await flames.count() >= before - 1 + Number(callers));
        assert.equal(await flames.first().textContent(), tree[0].name);

        // In a bar, no two named causes look the same, and each looks the same in the bar and in
        // the legend.
        for (const bar of await page.$$(".ledger > .bar")) {
            const [parts, names] = await bar.evaluate((bar) => [
                [...bar.querySelectorAll(".stack i")], [...bar.querySelectorAll(":scope > .legend li > i")],
            ].map((all) => all.map((one) => getComputedStyle(one).background)));
            assert.ok(names.length > 3);
            assert.equal(new Set(names).size, names.length, names.join("\n"));
            assert.deepEqual(parts.slice(0, names.length), names);
            assert.ok(parts.slice(names.length).every((one) => !names.includes(one)));
        }

        // In the chart, the longest iteration has a label, whether the chart is coloured by phase
        // or by cause.
        const chart = "[data-iterations]";
        const longest = process.slowest[0];
        assert.ok(process.slowest.every((slow) => slow.dur_ns - slow.idle_ns <= longest.dur_ns - longest.idle_ns));
        const labelled = async () => JSON.parse(await page.$eval(chart, (chart) => chart.dataset.labelled));
        assert.ok((await labelled()).includes(longest.n));
        await page.click(".choice button:has-text('cause')");
        assert.ok((await labelled()).includes(longest.n));
        // If the chart is coloured by cause, code is drawn in the colours of its samples, which the
        // legend explains.
        const legend = await page.$$eval(`section.card:has(${chart}) .legend li`, (all) => all.map((one) => one.textContent));
        for (const name of ["waits for the GPU", "launching", "Python code", "code without a sample"]) assert.ok(legend.includes(name), legend.join());
        const python = await css(page, "python");
        const seen = await page.$eval(`${chart} canvas`, (canvas, python) => {
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            let count = 0;
            for (let at = 0; at < data.length; at += 4) if (python.every((one, rgb) => data[at + rgb] === one)) count++;
            return count;
        }, python);
        assert.ok(seen > 2000, `${seen} pixels of Python code`);
    });
}

// Test: the page fits windows from the width of a phone to that of a large screen. If kernels were
// recorded, the timeline first shows an iteration with recorded kernels.
for (const width of [390, 800, 1400]) {
    for (const name of ["vllm-stacks", "hf-generate", "ranks", "batches"]) {
        await open(name, { viewport: { width, height: 900 } }, async (page) => {
            const wide = await page.evaluate(() => document.documentElement.scrollWidth);
            assert.ok(wide <= width, `${name}: it is ${wide} wide in ${width}`);
            const names = await page.$$eval("td > .name", (names) => names.map((name) => {
                const [own, cell] = [name, name.parentElement].map((one) => one.getBoundingClientRect());
                return own.right - cell.right;
            }));
            assert.ok(names.every((over) => over <= 1), `${name}: in ${width}, names cover figures: ${names}`);
            if (name !== "hf-generate") return;
            const [, n] = /^iteration (\d+) /.exec(await page.textContent(".timeline .status"));
            const [window] = report(name).processes[0].windows;
            assert.ok(window.iterations.find((one) => one.n === Number(n)).gpu_busy_ns > 0, n);
            assert.ok(window.iterations.some((one) => one.gpu_busy_ns === null));
            assert.deepEqual(["p90", "p99"].map((quantile) => report(name).processes[0].inside.time[`${quantile}_ns`] === null), [false, true]);
            assert.equal(await page.textContent("#p99"), "–");
        });
    }
}

// Test: the pages of damaged records work.
for (let seed = 0; seed < 6; seed++) {
    await open(`damaged-${seed}`, {}, async (page) => {
        await page.focus(TIMELINE);
        for (const key of ["0", "w", "w", "d", "s", "]", "]", "[", ".", "f", "Home"]) {
            await page.keyboard.press(key);
            const { from, to } = await seen(page);
            assert.ok(to > from, `${key}: from ${from} to ${to}`);
        }
        await page.selectOption("#process", "1");
        await page.waitForSelector('html[data-ready="1"]');
    });
}

await opened.close();
