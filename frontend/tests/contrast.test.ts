import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";

const css = readFileSync(`${import.meta.dirname}/../src/styles/tokens.css`, "utf8");

function tokens(selector: string): Record<string, string> {
  const start = css.indexOf(`${selector} {`);
  const block = css.slice(start, css.indexOf("}", start));
  return Object.fromEntries([...block.matchAll(/--([\w-]+):\s*(#[0-9A-Fa-f]{6})/g)].map((found) => [found[1] as string, found[2] as string]));
}

function luminance(hex: string): number {
  const channel = (at: number): number => {
    const value = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5);
}

function contrast(a: string, b: string): number {
  const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x) as [number, number];
  return (high + 0.05) / (low + 0.05);
}

const GROUNDS = ["bg", "surface", "raised", "face", "code", "signal-soft"];
const TEXT = ["ink", "ink-2", "ink-3", "signal", "rival", "hold", "bad"];
const GRAPHICS = ["line-strong", "focus"];
const SYNTAX = ["syn-kw", "syn-str", "syn-num", "syn-com", "syn-type"];

/** Published figures of the design (dark, light); the stylesheet must give the same to one decimal. */
const PUBLISHED: [string, string, number, number][] = [
  ["ink", "bg", 16.1, 15.5],
  ["ink-3", "raised", 5.5, 6.9],
  ["ink-3", "signal-soft", 5.0, 4.9],
  ["signal", "face", 14.5, 6.1],
  ["rival", "face", 9.4, 5.7],
  ["hold", "signal-soft", 8.0, 5.4],
  ["bad", "code", 8.4, 6.8],
  ["line-strong", "signal-soft", 3.3, 3.2],
  ["focus", "code", 12.1, 7.8],
  ["action-ink", "action", 13.6, 13.2],
  ["syn-com", "code", 6.2, 6.0],
];

describe.each([
  ["dark", ":root", 2],
  ["light", ':root[data-theme="light"]', 3],
] as const)("colours of the %s theme", (_name, selector, column) => {
  const palette = tokens(selector);
  const pair = (a: string, b: string): number => contrast(palette[a] as string, palette[b] as string);

  it("text has at least 4.5, controls and graphics at least 3", () => {
    for (const ground of GROUNDS) {
      for (const ink of TEXT) expect(pair(ink, ground), `${ink} on ${ground}`).toBeGreaterThanOrEqual(4.5);
      for (const ink of GRAPHICS) expect(pair(ink, ground), `${ink} on ${ground}`).toBeGreaterThanOrEqual(3);
    }
    for (const ink of SYNTAX) expect(pair(ink, "code"), ink).toBeGreaterThanOrEqual(4.5);
    expect(pair("action-ink", "action")).toBeGreaterThanOrEqual(4.5);
  });

  it("gives the published figures", () => {
    for (const row of PUBLISHED) expect(Math.abs(pair(row[0], row[1]) - row[column]), row.join(" ")).toBeLessThan(0.06);
  });
});
