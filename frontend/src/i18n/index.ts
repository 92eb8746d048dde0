import { recalled, remember } from "../shell/memory";
import { en } from "./en";
import { fr } from "./fr";

/** Between a number and its unit: never broken over lines. */
export const GAP = "\u00a0";

export type Key = keyof typeof en;
export type Vars = Record<string, string | number>;
export type Language = "en" | "fr";

/** Other parts bring their words in files of their own beside these (`workbench.en.ts`): each exports one flat object. */
const extra = import.meta.glob<Record<string, Record<string, string>>>("./*.*.ts", { eager: true });

function merged(language: Language): Record<string, string> {
  const all: Record<string, string> = { ...(language === "fr" ? { ...en, ...fr } : en) };
  for (const [file, module] of Object.entries(extra)) {
    if (file.endsWith(`.${language}.ts`)) for (const table of Object.values(module)) Object.assign(all, table);
  }
  if (language === "fr") for (const [key, text] of Object.entries(all)) all[key] = text.replace(/ (?=[:;?!»])|(?<=«) /g, GAP);
  return all;
}

function preferred(): Language {
  const stored = recalled("language");
  if (stored === "en" || stored === "fr") return stored;
  return navigator.language.toLowerCase().startsWith("fr") ? "fr" : "en";
}

export const language: Language = preferred();
const words = merged(language);
document.documentElement.lang = language;

/** The text of a key; `{name}` is replaced from `vars`. A key with `|` holds "one|many", chosen by `vars.n`. */
export function t(key: Key | (string & {}), vars?: Vars | object): string {
  const values = (vars ?? {}) as Vars;
  let text = words[key] ?? key;
  if (text.includes("|") && "n" in values) {
    const [one = "", many = ""] = text.split("|");
    const n = Number(String(values.n).replace(/[^\d.-]/g, ""));
    text = n === 1 || (language === "fr" && n === 0) ? one : many;
  }
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => {
    const value = values[name];
    if (value === undefined) return whole;
    return typeof value === "number" ? num(value, Number.isInteger(value) ? 0 : 1) : value;
  });
}

export function setLanguage(next: Language): void {
  remember("language", next);
  location.reload();
}

const formats = new Map<number, Intl.NumberFormat>();

/** A number in the reader's language with a fixed count of decimals: 1,015 or 1 015. */
export function num(value: number, decimals = 0): string {
  let format = formats.get(decimals);
  if (!format) {
    format = new Intl.NumberFormat(language, { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
    formats.set(decimals, format);
  }
  return format.format(value);
}

/** Marks of an axis: whole numbers as they are, others with the fewest decimals that tell all of them apart. */
export function marks(values: number[]): string[] {
  let decimals = 0;
  while (decimals < 6 && new Set(values.map((value) => num(value, decimals))).size < values.length) decimals++;
  return values.map((value) => num(value, value % 1 ? decimals : 0));
}

/** A number as it is typed: no grouping, as many decimals as it has, up to three. */
export function typed(value: number): string {
  return new Intl.NumberFormat(language, { maximumFractionDigits: 3, useGrouping: false }).format(value);
}

/** Milliseconds below a second, else seconds: [number, unit]. */
export function duration(ms: number): [string, string] {
  if (ms < 1000) return [num(Math.round(ms)), "ms"];
  return [num(ms / 1000, ms < 10_000 ? 1 : 0), "s"];
}

/** Seconds with milliseconds, as in "0.664 s". */
export function seconds(ms: number): string {
  return num(ms / 1000, 3);
}
