// Functions that create HTML elements, and the colours of the page's theme.

type Child = Node | string | null | undefined | false;

export function el<K extends keyof HTMLElementTagNameMap>(
    tag: K, attributes: Record<string, string> = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    for (const child of children) if (child) element.append(child);
    return element;
}

export function button(label: string, title: string, act: () => void): HTMLButtonElement {
    const made = el("button", { type: "button", title }, label);
    made.addEventListener("click", act);
    return made;
}

export function card(title: string, caption: string, ...children: Child[]): HTMLElement {
    const id = "h-" + title.toLowerCase().replace(/[^a-z]+/g, "-");
    return el("section", { class: "card", "aria-labelledby": id },
        el("header", {}, el("h2", { id }, title), caption && el("p", { class: "caption" }, caption)), ...children);
}

let probe: HTMLElement | undefined;
let cache = new Map<string, string>();

/** Returns the current value of a colour, which is given by the name of its CSS variable. */
export function colour(name: string): string {
    let found = cache.get(name);
    if (!found) {
        probe ??= document.body.appendChild(el("span", { hidden: "" }));
        probe.style.color = `var(--${name})`;
        found = getComputedStyle(probe).color;
        cache.set(name, found);
    }
    return found;
}

const listeners: (() => void)[] = [];
/** Registers a function that is called when the theme (light or dark) changes. */
export const onTheme = (act: () => void) => listeners.push(act);
export const offTheme = (act: () => void) => {
    const at = listeners.indexOf(act);
    if (at >= 0) listeners.splice(at, 1);
};

function changed() {
    cache = new Map();
    listeners.forEach((act) => act());
}

const dark = matchMedia("(prefers-color-scheme: dark)");

/**
 * Creates the button that switches between the light and the dark theme. Until it is used, the page
 * has the theme of the system.
 */
export function themeSwitch(): HTMLElement {
    const root = document.documentElement;
    const isDark = () => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
    const made = button("", "Switch between light and dark", () => {
        root.dataset.theme = isDark() ? "light" : "dark";
        show();
        changed();
    });
    made.classList.add("theme");
    const show = () => {
        made.textContent = isDark() ? "Light" : "Dark";
        made.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
    };
    dark.addEventListener("change", () => {
        show();
        changed();
    });
    show();
    return made;
}
