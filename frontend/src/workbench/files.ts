import type { CodeText } from "./code-text";

/** One writing of a file by one message, and what the reader changed in it. */
export interface Version {
  readonly messageId: string;
  readonly name: string;
  readonly language: string;
  readonly text: CodeText;
  /** The block was closed by its fence; false while it is written and where the answer was cut off. */
  closed: boolean;
  /** The hand-edited text, null while it equals the written one. */
  edited: string | null;
  /** The hand-edited text has gone to the model as it stands. */
  sent: boolean;
  scrollTop: number;
}

/** A file as an answer holds it. */
export interface StoredFile {
  messageId: string;
  name: string;
  language: string;
  text: CodeText;
}

export interface PlainFile {
  name: string;
  language: string;
  code: string;
}

export function codeOf(version: Version): string {
  return version.edited ?? version.text.text;
}

/** The edits of a conversation in this browser: `{key: text}`, written a moment after the last change. */
class EditStore {
  private timer = 0;

  constructor(private readonly key: string) {}

  load(): Record<string, string> {
    try {
      return JSON.parse(localStorage.getItem(this.key) ?? "{}") as Record<string, string>;
    } catch {
      return {};
    }
  }

  save(edits: Record<string, string>, onFull: () => void): void {
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.write(edits, onFull), 300);
  }

  write(edits: Record<string, string>, onFull: () => void): void {
    clearTimeout(this.timer);
    try {
      if (Object.keys(edits).length) localStorage.setItem(this.key, JSON.stringify(edits));
      else localStorage.removeItem(this.key);
    } catch {
      onFull();
    }
  }
}

/** All files of one conversation: by name, each with its versions in the order of the messages. */
export class ConversationFiles {
  readonly names = new Map<string, Version[]>();
  private readonly store: EditStore;
  private stored: Record<string, string>;

  constructor(
    readonly id: string,
    private readonly onFull: () => void,
  ) {
    this.store = new EditStore(`workbench:${id}`);
    this.stored = this.store.load();
  }

  add(messageId: string, name: string, language: string, text: CodeText, closed: boolean): Version {
    const version: Version = { messageId, name, language, text, closed, edited: null, sent: false, scrollTop: 0 };
    const versions = this.names.get(name) ?? [];
    this.names.set(name, versions);
    versions.push(version);
    if (text.complete) this.restore(version);
    return version;
  }

  /** Replaces the files by the stored ones; what is being written stays, and equal text keeps its times and edits. */
  reconcile(files: StoredFile[]): void {
    const before = [...this.names.values()].flat();
    this.names.clear();
    for (const file of files) {
      const at = before.findIndex((v) => v.messageId === file.messageId && v.name === file.name && (!v.text.complete || v.text.text === file.text.text));
      if (at >= 0) this.keep(before.splice(at, 1)[0]!);
      else {
        file.text.complete = true;
        this.add(file.messageId, file.name, file.language, file.text, true);
      }
    }
    for (const version of before) if (!version.text.complete) this.keep(version);
  }

  find(messageId: string, name: string): Version | undefined {
    return this.names.get(name)?.filter((version) => version.messageId === messageId).at(-1);
  }

  latest(): Version[] {
    return [...this.names.values()].map((versions) => versions[versions.length - 1]!);
  }

  /** The newest version of every file, one entry a name, with `chosen` in place of its own name's newest. */
  bundle(chosen?: Version): PlainFile[] {
    return this.latest().map((version) => {
      const used = version.name === chosen?.name ? chosen : version;
      return { name: used.name, language: used.language, code: codeOf(used) };
    });
  }

  /** Files that were changed by hand, and neither sent nor written anew since. */
  editedFiles(): PlainFile[] {
    return this.latest()
      .filter((version) => version.edited !== null && !version.sent)
      .map((version) => ({ name: version.name, language: version.language, code: version.edited! }));
  }

  setEdit(version: Version, code: string): void {
    version.edited = code === version.text.text ? null : code;
    version.sent = false;
    delete this.stored[this.sentKey(version)];
    if (version.edited === null) delete this.stored[this.key(version)];
    else this.stored[this.key(version)] = code;
    this.store.save(this.stored, this.onFull);
  }

  /** These files stand in a request now; what was edited since the sending waits for the next one. */
  markSent(files: PlainFile[]): void {
    for (const version of this.latest()) {
      if (!files.some((file) => file.name === version.name && file.code === version.edited)) continue;
      version.sent = true;
      this.stored[this.sentKey(version)] = "1";
    }
    this.flush();
  }

  /** Writes waiting edits at once (the page is going away). */
  flush(): void {
    this.store.write(this.stored, this.onFull);
  }

  restore(version: Version): void {
    const stored = this.stored[this.key(version)];
    if (stored === undefined || stored === version.text.text) return;
    version.edited = stored;
    version.sent = this.sentKey(version) in this.stored;
  }

  private keep(version: Version): void {
    this.names.set(version.name, [...(this.names.get(version.name) ?? []), version]);
  }

  private sentKey(version: Version): string {
    return `sent:${this.key(version)}`;
  }

  private key(version: Version): string {
    const same = (this.names.get(version.name) ?? []).filter((other) => other.messageId === version.messageId);
    return `${version.messageId}/${same.indexOf(version)}/${version.name}`;
  }
}
