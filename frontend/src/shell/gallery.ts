import { t } from "../i18n";
import { h } from "./dom";
import { openSheet } from "./layers";

export interface GalleryPrompt {
  title: string;
  facts: string;
  prompt: string;
}

/** Prompts that a small model answers well: short, one task, a known shape. The first four stand on the empty page. */
export function galleryPrompts(): GalleryPrompt[] {
  const of = (key: string, kind: string, tokens: number, prompt: string): GalleryPrompt => ({
    title: t(`gal_${key}`),
    facts: t("gal_facts", { kind, n: tokens }),
    prompt,
  });
  return [
    of("stack", "Python", 230, "Write a Python class Stack with push, pop and peek, and a short example."),
    of("gcd", "Python", 90, "Write a Python function gcd(a, b) that uses a while loop."),
    of("reverse", "JavaScript", 160, "Write a JavaScript function that reverses a string. Add two examples with console.log."),
    of("traceback", t("gal_kind_text"), 150, "Explain this error in two sentences: IndexError: list index out of range"),
    of("words", "Python", 200, "Write a Python function that counts how often each word occurs in a text. Use a dictionary."),
    of("temperature", "Python", 150, "Write two Python functions that convert Celsius to Fahrenheit and back. Print a small table."),
    of("fibonacci", "Python", 150, "Write a Python generator that yields the Fibonacci numbers. Print the first 15."),
    of("page", "HTML", 350, "Write one HTML file with a heading, a button and a counter that goes up by one when the button is clicked."),
    of("fizz", "Python", 150, "Write FizzBuzz in Python for the numbers 1 to 30."),
    of("sql", "SQL", 120, "Write an SQL query that lists the ten customers with the highest total of orders."),
    of("regex", "Python", 150, "Write a Python regular expression that finds dates such as 2024-05-31 in a text, with a short example."),
    of("list", t("gal_kind_text"), 200, "List five ways to make a Python loop faster. One sentence each."),
  ];
}

export function promptRow(item: GalleryPrompt, use: (prompt: string) => void): HTMLElement {
  return h("li", null, h("button", { type: "button", class: "pick", onClick: () => use(item.prompt) }, h("b", null, item.title), h("span", null, item.facts)));
}

export function openGallery(use: (prompt: string) => void): void {
  const list = h("ul", { class: "galitems" });
  const layer = openSheet(t("gallery"), list);
  for (const item of galleryPrompts()) {
    list.append(
      promptRow(item, (prompt) => {
        layer.close();
        use(prompt);
      }),
    );
  }
}
