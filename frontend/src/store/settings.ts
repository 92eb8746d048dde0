import { recalled, remember } from "../shell/memory";
import type { ModelCard, Params } from "../api/types";
import { t } from "../i18n";

export interface Settings {
  model: string;
  temperature: number;
  top_p: number;
  top_k: number;
  min_p: number;
  max_tokens: number;
  /** null: a new random seed for every request. */
  seed: number | null;
  stop: string[];
  system: string;
}

export type NumberField = "temperature" | "top_p" | "top_k" | "min_p" | "max_tokens";

export interface Range {
  min: number;
  max: number;
  step: number;
  whole: boolean;
}

export const RANGES: Record<NumberField, Range> = {
  temperature: { min: 0, max: 2, step: 0.05, whole: false },
  top_p: { min: 0.01, max: 1, step: 0.01, whole: false },
  top_k: { min: 0, max: 200, step: 1, whole: true },
  min_p: { min: 0, max: 1, step: 0.01, whole: false },
  max_tokens: { min: 1, max: 4096, step: 1, whole: true },
};

export const DEFAULTS: Omit<Settings, "model"> = { temperature: 0.2, top_p: 0.95, top_k: 40, min_p: 0, max_tokens: 512, seed: null, stop: [], system: "" };

export type Preset = { name: string } & Partial<Omit<Settings, "model">>;

export const BUILT_IN_PRESETS: { key: "preset_exact" | "preset_even" | "preset_free" | "preset_same"; values: Preset }[] = [
  { key: "preset_exact", values: { name: "exact", temperature: 0.2, top_p: 0.95, top_k: 40, min_p: 0, seed: null } },
  { key: "preset_even", values: { name: "even", temperature: 0.7, top_p: 0.95, top_k: 50, min_p: 0.05, seed: null } },
  { key: "preset_free", values: { name: "free", temperature: 1.1, top_p: 1, top_k: 0, min_p: 0.08, seed: null } },
  { key: "preset_same", values: { name: "same", temperature: 0, top_p: 1, top_k: 0, min_p: 0, seed: 1 } },
];

const KEY = "settings";
const PRESETS_KEY = "presets";

function read<T>(key: string, fallback: T): T {
  try {
    const text = recalled(key);
    return text ? (JSON.parse(text) as T) : fallback;
  } catch {
    return fallback;
  }
}

export class SettingsStore {
  value: Settings;
  presets: Preset[];
  private readonly listeners = new Set<() => void>();

  constructor(
    private readonly models: ModelCard[],
    defaultModel: string,
  ) {
    const stored = read<Partial<Settings>>(KEY, {});
    this.value = { ...DEFAULTS, ...stored, model: stored.model && models.some((one) => one.name === stored.model) ? stored.model : defaultModel };
    this.presets = read<Preset[]>(PRESETS_KEY, []);
  }

  get card(): ModelCard | null {
    return this.models.find((one) => one.name === this.value.model) ?? null;
  }

  set(change: Partial<Settings>): void {
    Object.assign(this.value, change);
    remember(KEY, this.value);
    for (const listener of this.listeners) listener();
  }

  savePreset(name: string): void {
    const { model: _model, ...values } = this.value;
    this.presets = [...this.presets.filter((one) => one.name !== name), { ...values, name }];
    remember(PRESETS_KEY, this.presets);
  }

  removePreset(name: string): void {
    this.presets = this.presets.filter((one) => one.name !== name);
    remember(PRESETS_KEY, this.presets);
  }

  subscribe(listener: () => void): void {
    this.listeners.add(listener);
  }

  params(preset?: Preset): Params {
    const { system: _system, name: _name, ...params } = { name: "", ...this.value, ...preset };
    return params;
  }

  /** The presets to choose from, with their names in the reader's language. */
  choices(): { label: string; preset: Preset }[] {
    return [...BUILT_IN_PRESETS.map((one) => ({ label: t(one.key), preset: one.values })), ...this.presets.map((preset) => ({ label: preset.name, preset }))];
  }
}

/** A number as a person types it (a comma counts as a point), or null when it is none or out of its range. */
export function parseField(field: NumberField, text: string): number | null {
  const range = RANGES[field];
  const trimmed = text.trim().replace(",", ".");
  const value = trimmed === "" ? Number.NaN : Number(trimmed);
  if (!Number.isFinite(value) || value < range.min || value > range.max) return null;
  return range.whole && !Number.isInteger(value) ? null : value;
}

export const drafts = {
  load: (conversationId: string | null): string => recalled(`draft:${conversationId ?? "new"}`) ?? "",
  save: (conversationId: string | null, text: string): void => remember(`draft:${conversationId ?? "new"}`, text),
};

/** The last decode rate seen of a model: makes room on the curve where no bound is known. */
export const lastRate = {
  load: (model: string): number => Number(recalled(`rate:${model}`)) || 0,
  save: (model: string, rate: number): void => remember(`rate:${model}`, String(Math.round(rate))),
};
