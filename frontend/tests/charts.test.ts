import { describe, expect, it } from "vitest";
import { bars, lines, short } from "../src/pages/stats/charts";

const axis = (figure: HTMLElement): string[] => [...figure.querySelectorAll(".y")].map((label) => label.textContent ?? "");
const series = (...values: number[]) => [{ name: "x", look: "", values }];

describe("the axis of a chart", () => {
  it.each([
    [[0], ["3", "2", "1", "0"]],
    [[4, 1], ["6", "4", "2", "0"]],
    [[7], ["9", "6", "3", "0"]],
    [[13], ["15", "10", "5", "0"]],
    [[118], ["150", "100", "50", "0"]],
  ])("has whole numbers where %j is counted", (values, labels) => {
    expect(axis(bars("", values.map(String), series(...values)))).toEqual(labels);
    expect(axis(lines("", values.map(String), series(...values), "counts"))).toEqual(labels);
  });
  it("may have fractions where something is measured", () => {
    expect(axis(lines("", ["a"], series(1)))).toEqual(["1.2", "0.8", "0.4", "0"]);
  });
  it("is short", () => {
    expect([1200, 12_300, 30_000, 120_000, 9_140_000].map(short)).toEqual(["1,200", "12.3 k", "30 k", "120 k", "9.14 M"]);
  });
});
