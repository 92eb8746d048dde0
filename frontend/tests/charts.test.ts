import { describe, expect, it } from "vitest";
import { marks } from "../src/i18n";
import { axisSeconds } from "../src/instrument/curve";
import { Samples } from "../src/instrument/rate";
import { RecordedCurve } from "../src/pages/parts/recorded-curve";
import { bars, lines, short } from "../src/pages/stats/charts";

const axis = (figure: HTMLElement): string[] => [...figure.querySelectorAll(".y")].map((label) => label.textContent ?? "");
const series = (...values: number[]) => [{ name: "x", look: "", values }];

describe("the axis of a chart", () => {
  it("has marks of time as far apart as they stand", () => {
    expect([0, 1, 2, 3, 4].map((index) => axisSeconds(12_800, index))).toEqual(["0", "3.2", "6.4", "9.6", "12.8\u00a0s"]);
  });

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

describe("marks of an axis", () => {
  it.each([
    [[0, 200, 400], ["0", "200", "400"]],
    [[0, 16.7, 33.3], ["0", "17", "33"]],
    [[0, 0.5, 1, 1.5], ["0", "0.5", "1", "1.5"]],
    [[1005.8, 1006.1], ["1,005.8", "1,006.1"]],
    [[0, 0.0004, 0.0008], ["0", "0.0004", "0.0008"]],
  ])("tell %j apart", (values, labels) => expect(marks(values)).toEqual(labels));

  it("differ along the shortest and slowest recorded runs", () => {
    const curve = (tokens: number, everyMs: number): HTMLElement => {
      const samples = new Samples();
      for (let index = 1; index <= tokens; index++) samples.add(1, index * everyMs);
      return new RecordedCurve(samples, tokens * everyMs, null, { bound: "", name: "" }).element;
    };
    const texts = (figure: HTMLElement, kind: string): string[] => [...figure.querySelectorAll(`.${kind}:not(.unit)`)].map((label) => label.textContent ?? "");
    expect(texts(curve(12, 1), "x")).toEqual(["0", "0.005", "0.010"]);
    expect(texts(curve(60, 30), "x")).toEqual(["0", "0.5", "1", "1.5"]);
    expect(new Set(texts(curve(10, 8000), "y")).size).toBe(4);
  });
});
