import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { FocusGuard } from "../src/sandbox/focus";

let box: HTMLInputElement;
let other: HTMLInputElement;
let frame: HTMLIFrameElement;
let guard: FocusGuard;
let active: Element | null = null;

/** What a browser tells the document when the focus goes into a frame: the element loses it, and some time later so does the window. */
async function intoFrame(wait = 0): Promise<void> {
  const held = active;
  active = document.body;
  if (held !== document.body) held?.dispatchEvent(new FocusEvent("focusout", { bubbles: true }));
  await vi.advanceTimersByTimeAsync(wait);
  active = frame;
  window.dispatchEvent(new FocusEvent("blur"));
  await vi.advanceTimersByTimeAsync(500);
}

function key(name: string, type = "keydown", more: KeyboardEventInit = {}): void {
  (active ?? document.body).dispatchEvent(new KeyboardEvent(type, { key: name, bubbles: true, cancelable: true, ...more }));
}

beforeEach(() => {
  vi.useFakeTimers();
  document.body.innerHTML = "<input><input><div></div>";
  [box, other] = document.querySelectorAll("input") as unknown as [HTMLInputElement, HTMLInputElement];
  frame = document.querySelector("div") as unknown as HTMLIFrameElement; // stands for the frame, which is not loaded here
  vi.spyOn(document, "activeElement", "get").mockImplementation(() => active);
  for (const element of [box, other]) {
    element.focus = () => {
      active = element;
      element.dispatchEvent(new FocusEvent("focusin", { bubbles: true }));
    };
  }
  frame.blur = () => (active = document.body);
  active = document.body;
  guard = new FocusGuard(frame);
  box.focus();
});

afterEach(() => {
  guard.end();
  vi.restoreAllMocks();
  vi.useRealTimers();
});

describe("a page's grab for the focus", () => {
  it("is undone, also when the window hears of it late", async () => {
    await intoFrame();
    expect(active).toBe(box);
    await intoFrame(700);
    expect(active).toBe(box);
  });
  it("is undone after a Tab that went to another element", async () => {
    key("Tab");
    box.dispatchEvent(new FocusEvent("focusout", { bubbles: true }));
    other.focus();
    key("Tab", "keyup");
    await intoFrame();
    expect(active).toBe(other);
  });
  it("is undone after a Tab that an editor took to indent", async () => {
    box.addEventListener("keydown", (event) => event.preventDefault());
    key("Tab");
    await intoFrame();
    expect(active).toBe(box);
  });
  it.each([
    ["its keyup", () => key("Tab", "keyup")],
    ["another key", () => key("x")],
    ["a press of the pointer", () => box.dispatchEvent(new Event("pointerdown", { bubbles: true }))],
  ])("is undone after a Tab that led nowhere, as %s shows", async (_name, shows) => {
    key("Tab");
    shows();
    await intoFrame();
    expect(active).toBe(box);
  });
  it("is undone after a Tab that switched windows", async () => {
    key("Tab", "keydown", { altKey: true });
    await intoFrame();
    expect(active).toBe(box);
  });
  it("is undone after a Tab that left the document", async () => {
    key("Tab");
    active = document.body;
    box.dispatchEvent(new FocusEvent("focusout", { bubbles: true }));
    window.dispatchEvent(new FocusEvent("blur"));
    await vi.advanceTimersByTimeAsync(5000);
    await intoFrame();
    expect(active, "nothing had the focus").toBe(document.body);
  });
});

describe("the Tab key", () => {
  it.each([0, 119, 5000])("leads into the page when the window hears of it after %i ms", async (wait) => {
    key("Tab");
    await intoFrame(wait);
    expect(active).toBe(frame);
    await vi.advanceTimersByTimeAsync(5000);
    expect(active).toBe(frame);
  });
  it("leads into the page though the next key falls before the window's word", async () => {
    key("Tab");
    active = document.body;
    box.dispatchEvent(new FocusEvent("focusout", { bubbles: true }));
    key("Tab", "keyup");
    key("x");
    await intoFrame(300);
    expect(active).toBe(frame);
  });
  it("leads into the page from where nothing had the focus", async () => {
    active = document.body;
    await vi.advanceTimersByTimeAsync(5000);
    key("Tab");
    key("Tab", "keyup");
    await intoFrame(300);
    expect(active).toBe(frame);
  });
  it("lets in once: a grab after the person has come back is undone", async () => {
    key("Tab");
    await intoFrame(300);
    box.focus();
    await intoFrame();
    expect(active).toBe(box);
  });
});
