import { h } from "../shell/dom";
import type { PlainFile } from "./files";

function save(name: string, content: Blob): void {
  const url = URL.createObjectURL(content);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export function downloadFile(file: PlainFile): void {
  save(file.name.split("/").pop()!, new Blob([file.code], { type: "text/plain;charset=utf-8" }));
}

export async function downloadZip(name: string, files: PlainFile[]): Promise<void> {
  const { zipSync, strToU8 } = await import("fflate");
  const entries = Object.fromEntries(files.map((file) => [file.name.replace(/^\/+|\.\.\//g, ""), strToU8(file.code)]));
  save(name, new Blob([zipSync(entries) as Uint8Array<ArrayBuffer>], { type: "application/zip" }));
}
