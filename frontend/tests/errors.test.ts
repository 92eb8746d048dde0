import { expect, test } from "vitest";
import { ApiError, toJson } from "../src/api/http";
import { errorText, wordsOf } from "../src/i18n/errors";

const details = { prompt_tokens: 25833, context_tokens: 8192, model: "Small", over: 17641 };

test("a prompt that nobody counted to its end is said to have at least so many tokens", () => {
  const error = { code: "prompt_too_long", message: "", details };
  expect(errorText(error)).toBe("This prompt has 25,833 tokens; Small takes 8,192. Shorten it by 17,641.");
  expect(errorText({ ...error, details: { ...details, bound: "at_least" } })).toBe(
    "This prompt has at least 25,833 tokens; Small takes 8,192. Shorten it by at least 17,641.",
  );
});

test("whatever is thrown has words, with the time of a limit's end", () => {
  const details = { limited: "copies", span: "minute", limit: 30, retry_after_s: 11.2 };
  expect(wordsOf(new ApiError(429, "rate_limited", "30 copies", details))).toBe("30 copies of chats a minute are the limit. Free again in 12 s.");
  expect(wordsOf(new ApiError(429, "rate_limited", "50 keys", { limited: "keys", limit: 50, retry_after_s: 1 }))).toBe("50 keys are the limit. Revoke one first.");
  expect(wordsOf(new ApiError(400, "unheard_of", "The server's own words."))).toBe("The server's own words.");
  expect([wordsOf(new TypeError("x is undefined")), wordsOf("thrown")]).toEqual(["x is undefined", "thrown"]);
});

test("what is sent is text that the server can store: no NUL, no half of a surrogate pair", () => {
  expect(JSON.parse(toJson({ a: ["x\0y", "\ud800z", "z\udc00", "😀"], n: 7, no: null }))).toEqual({ a: ["x\ufffdy", "\ufffdz", "z\ufffd", "😀"], n: 7, no: null });
});
