import type { PromptMessage, StoredConversation } from "../api/types";
import { Generation } from "./generation";

export interface Message {
  id: string;
  parentId: string | null;
  role: "user" | "assistant" | "system";
  content: string;
  run: Generation | null;
}

const ROOT = "";

/** A conversation is a tree of messages; an edit or a regeneration adds a branch. One path through it is shown. */
export class Conversation {
  readonly messages = new Map<string, Message>();
  private readonly children = new Map<string, Message[]>();
  private readonly chosen = new Map<string, Message>();
  private shown: Message[] | null = null; // the path, until another one is chosen

  constructor(
    public id: string | null,
    public title: string,
  ) {}

  /** Builds the tree; runs known to this page already are kept, so that a stream goes on where it is. */
  static fromStored(stored: StoredConversation, known: (id: string) => Generation | undefined): Conversation {
    const conversation = new Conversation(stored.id, stored.title);
    for (const message of stored.messages) {
      const generation = message.generation;
      const run = generation ? (known(generation.id) ?? Generation.fromStored(generation)) : null;
      conversation.add({ id: message.id, parentId: message.parent_id, role: message.role, content: message.content, run });
    }
    return conversation;
  }

  add(message: Message): void {
    this.messages.set(message.id, message);
    const key = message.parentId ?? ROOT;
    const siblings = this.children.get(key) ?? [];
    siblings.push(message);
    this.children.set(key, siblings);
    this.choose(message);
  }

  /** Takes away a message that the server did not accept (it has no children). */
  remove(message: Message): void {
    this.messages.delete(message.id);
    const key = message.parentId ?? ROOT;
    const siblings = (this.children.get(key) ?? []).filter((one) => one !== message);
    this.children.set(key, siblings);
    const last = siblings[siblings.length - 1];
    if (last) this.chosen.set(key, last);
    else this.chosen.delete(key);
    this.shown = null;
  }

  /** Gives a message the id that the server chose. */
  rename(message: Message, id: string): void {
    if (message.id === id) return;
    const children = this.children.get(message.id);
    const chosen = this.chosen.get(message.id);
    this.messages.delete(message.id);
    this.children.delete(message.id);
    this.chosen.delete(message.id);
    message.id = id;
    this.messages.set(id, message);
    if (children) {
      for (const child of children) child.parentId = id;
      this.children.set(id, children);
    }
    if (chosen) this.chosen.set(id, chosen);
  }

  /** The shown messages from the first to the last. */
  path(): readonly Message[] {
    return (this.shown ??= this.walked());
  }

  private walked(): Message[] {
    const out: Message[] = [];
    let next = this.chosen.get(ROOT);
    while (next) {
      out.push(next);
      next = this.chosen.get(next.id);
    }
    return out;
  }

  pathTo(message: Message): Message[] {
    const out: Message[] = [];
    let at: Message | undefined = message;
    while (at) {
      out.push(at);
      at = at.parentId === null ? undefined : this.messages.get(at.parentId);
    }
    return out.reverse();
  }

  siblings(message: Message): Message[] {
    return this.children.get(message.parentId ?? ROOT) ?? [];
  }

  choose(message: Message): void {
    this.chosen.set(message.parentId ?? ROOT, message);
    this.shown = null;
  }

  /** The last shown message that passes. */
  findLast(passes: (message: Message) => boolean): Message | undefined {
    const path = this.path();
    for (let at = path.length - 1; at >= 0; at--) {
      const message = path[at] as Message;
      if (passes(message)) return message;
    }
    return undefined;
  }

  get last(): Message | undefined {
    return this.path().at(-1);
  }
}

/** What the model sees: the system prompt, then the messages with text. */
export function promptMessages(system: string, messages: readonly Message[]): PromptMessage[] {
  const out: PromptMessage[] = [];
  if (system.trim()) out.push({ role: "system", content: system.trim() });
  for (const message of messages) {
    const content = message.role === "assistant" && message.run ? message.run.text || message.content : message.content;
    if (content) out.push({ role: message.role, content });
  }
  return out;
}
