import { ApiError } from "../api/http";
import type { ErrorBody } from "../api/types";
import { t } from ".";

/**
 * An error of the server in the reader's language: found by its code, filled with its numbers. `tokens` of the run were kept.
 * Where the numbers did not come along, the server's own words are quoted.
 */
export function errorText(error: ErrorBody, tokens = 0): string {
  const details = error.details ?? {};
  const kinds = [details.limited, details.span, details.bound].filter(Boolean);
  const key = ["error", error.code, ...kinds].join(".");
  const values = { n: tokens, message: error.message, ...details };
  const text = t(key, values);
  return text === key || /\{\w+\}/.test(text) ? t("error.error", values) : text;
}

/** What was thrown by a call of the server, or by anything else, in words that may stand alone. */
export function wordsOf(error: unknown): string {
  if (!(error instanceof ApiError)) return error instanceof Error ? error.message : String(error);
  const { span, retry_after_s } = error.details ?? {};
  return span ? `${errorText(error)} ${freeAgain(Math.ceil(Number(retry_after_s)))}` : errorText(error);
}

/** Until when an error holds, in words: "Free again in 12 s." */
export function freeAgain(seconds: number): string {
  if (seconds < 100) return t("error.free_s", { s: seconds });
  if (seconds < 6000) return t("error.free_min", { min: Math.round(seconds / 60) });
  return t("error.free_h", { h: Math.round(seconds / 3600) });
}
