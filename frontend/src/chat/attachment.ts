import { megabytes } from "../api/http";
import { t } from "../i18n";
import { languageOf } from "./files";

/** A text that goes with the message and stays out of its box: a large paste, or a file. */
export interface Attachment {
  /** Of a file. */
  name?: string;
  /** As it stands in the request. */
  text: string;
  lines: number;
  kb: number;
}

/** A file that was chosen, dropped or pasted; a folder looks like one until it is read. */
export interface GivenFile {
  file: File;
  folder: boolean;
}

export function pastedText(text: string): Attachment {
  return { text, lines: countLines(text), kb: kilo(text.length) };
}

/** Throws with the reason, in words, when it is not text, is empty, cannot be read, or is larger than a message or the room left in it. */
export async function textFile({ file, folder }: GivenFile, limitBytes: number, roomBytes = limitBytes): Promise<Attachment> {
  const { size } = file;
  const name = plainName(file.name);
  if (folder) throw new Error(t("file_folder", { name }));
  if (size > limitBytes) throw new Error(t("file_too_large", { name, ...megabytes(size, limitBytes) }));
  if (size > roomBytes) throw new Error(t("file_no_room", { name, limit: limitBytes / 1e6 }));
  const bytes = await file.arrayBuffer().catch(() => {
    throw new Error(t("file_unread", { name }));
  });
  const text = decoded(bytes);
  if (text === null) throw new Error(t("file_not_text", { name }));
  if (text === "") throw new Error(t("file_empty", { name }));
  return { name, text: fenced(name, text), lines: countLines(text.replace(/\n$/, "")), kb: kilo(size) };
}

export function filesIn(data: DataTransfer): GivenFile[] {
  return [...data.items].flatMap((item) => {
    const file = item.getAsFile();
    return file ? [{ file, folder: item.webkitGetAsEntry()?.isDirectory ?? false }] : [];
  });
}

/** UTF-8 without its byte order mark; null for whatever else the bytes are. */
export function decoded(bytes: ArrayBuffer): string | null {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

/** A file's name in one line of one direction, which begins no fence. */
export function plainName(name: string): string {
  const line = name.replace(/[\p{Cc}\p{Zl}\p{Zp}\u202a-\u202e\u2066-\u2069]+/gu, " ");
  return line.replace(/^[\s`]*```/, "").trim();
}

/** The name of a file, then its text in a fence that nothing in the text can close. */
export function fenced(name: string, text: string): string {
  const longest = (text.match(/`+/g) ?? []).reduce((most, run) => Math.max(most, run.length), 0);
  const fence = "`".repeat(Math.max(3, longest + 1));
  return `${name}\n\n${fence}${languageOf(name)}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}

/** Thousands: whole ones, below ten with tenths. */
function kilo(count: number): number {
  return count < 10_000 ? Math.ceil(count / 100) / 10 : Math.round(count / 1000);
}

export function countLines(text: string): number {
  let lines = 1;
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) lines++;
  return lines;
}
