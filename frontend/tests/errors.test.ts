import { expect, test } from "vitest";
import { errorText } from "../src/i18n/errors";

const details = { prompt_tokens: 25833, context_tokens: 8192, model: "Small", over: 17641 };

test("a prompt that nobody counted to its end is said to have at least so many tokens", () => {
  const error = { code: "prompt_too_long", message: "", details };
  expect(errorText(error)).toBe("This prompt has 25,833 tokens; Small takes 8,192. Shorten it by 17,641.");
  expect(errorText({ ...error, details: { ...details, bound: "at_least" } })).toBe(
    "This prompt has at least 25,833 tokens; Small takes 8,192. Shorten it by at least 17,641.",
  );
});
