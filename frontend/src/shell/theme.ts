import { recalled, remember } from "./memory";

export type Theme = "dark" | "light";

/** The theme in force; set before first paint by the page's inline script, from the stored choice or the system. */
export function theme(): Theme {
  return document.documentElement.dataset.theme === "light" ? "light" : "dark";
}

export function switchTheme(): Theme {
  const next: Theme = theme() === "light" ? "dark" : "light";
  document.documentElement.dataset.theme = next;
  remember("theme", next);
  return next;
}

/** Follows the system for as long as nobody has chosen. */
export function followSystemTheme(): void {
  matchMedia("(prefers-color-scheme: light)").addEventListener("change", (event) => {
    if (!recalled("theme")) document.documentElement.dataset.theme = event.matches ? "light" : "dark";
  });
}
