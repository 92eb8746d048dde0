import type { ErrorBody } from "../api/types";
import { t } from ".";

/**
 * An error of the server in the reader's language: found by its code, filled with its numbers. `tokens` of the run were kept.
 * A code without words here, or without its numbers, keeps the server's own words.
 */
export function errorText(error: ErrorBody, tokens = 0): string {
  const details = error.details ?? {};
  const kinds = [details.limited, details.span].filter(Boolean);
  const key = ["error", error.code, ...kinds].join(".");
  const text = t(key, { n: tokens, ...details });
  return text === key || /\{\w+\}/.test(text) ? error.message : text;
}

/** Until when an error holds, in words: "Free again in 12 s." */
export function freeAgain(seconds: number): string {
  if (seconds < 100) return t("error.free_s", { s: seconds });
  if (seconds < 6000) return t("error.free_min", { min: Math.round(seconds / 60) });
  return t("error.free_h", { h: Math.round(seconds / 3600) });
}
