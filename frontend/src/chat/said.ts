import { h } from "../shell/dom";

const FENCED = /^(`{3,})([^`\n]*)\n([^]*?)(?:^\1`*[ \t]*$|(?![^]))/m;

/** What a person wrote, as it was typed; code in fences, files among it, as code. */
export function wordsAndCode(content: string): HTMLElement[] {
  const parts = content.split(FENCED);
  const shown: HTMLElement[] = [];
  for (let at = 0; at < parts.length; at += 4) {
    const [words = "", , info = "", code] = parts.slice(at, at + 4);
    if (words.trim()) shown.push(h("p", { dir: "auto" }, words.replace(/^\n+|\n+$/g, "")));
    if (code !== undefined) shown.push(h("pre", { class: "told", dir: "ltr" }, h("span", null, info), code.replace(/\n$/, "")));
  }
  return shown;
}
