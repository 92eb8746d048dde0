import { num, t, typed } from "../i18n";
import { BUILT_IN_PRESETS, DEFAULTS, parseField, RANGES, type NumberField, type SettingsStore } from "../store/settings";
import { button, h, withArrow } from "./dom";

const FIELDS: [NumberField, string][] = [
  ["temperature", "temperature"],
  ["top_p", "top_p"],
  ["top_k", "top_k"],
  ["min_p", "min_p"],
  ["max_tokens", "max_tokens"],
];

let nextId = 0;

/** The parameters form: in a drawer, or as a column on wide screens. Every field says its range when it is left wrong. */
export function parametersForm(settings: SettingsStore): HTMLElement {
  const form = h("form", { class: "params" });
  form.addEventListener("submit", (event) => event.preventDefault());
  const draw = (): void => form.replaceChildren(...contents(settings, draw));
  draw();
  return form;
}

function contents(settings: SettingsStore, redraw: () => void): HTMLElement[] {
  const out = [presets(settings, redraw)];
  for (const [field, label] of FIELDS) out.push(numberRow(settings, field, t(label)));
  out.push(seedRow(settings), stopRow(settings), systemRow(settings));
  out.push(
    button({
      label: t("reset_parameters"),
      kind: "q",
      onClick: () => {
        settings.set(DEFAULTS);
        redraw();
      },
    }),
  );
  return out;
}

function presets(settings: SettingsStore, redraw: () => void): HTMLElement {
  const id = `field-${++nextId}`;
  const select = h("select", { class: "field", id }, h("option", { value: "" }, t("choose_preset")));
  settings.choices().forEach((one, index) => select.append(h("option", { value: index }, one.label)));
  select.addEventListener("change", () => {
    if (select.value === "") return;
    const { preset } = settings.choices()[Number(select.value)]!;
    const { name: _name, ...values } = preset;
    settings.set(values);
    redraw();
  });
  const name = h("input", { class: "field", placeholder: t("preset_name"), "aria-label": t("preset_name"), maxlength: 40 });
  const save = button({
    label: t("save_preset"),
    onClick: () => {
      if (!name.value.trim()) return name.focus();
      settings.savePreset(name.value.trim());
      redraw();
    },
  });
  const row = h("div", { class: "presetrow" }, name, save);
  if (settings.presets.length > 0) {
    row.append(
      button({
        label: t("remove_preset"),
        kind: "q",
        onClick: () => {
          const chosen = settings.presets[Number(select.value || -1) - BUILT_IN_PRESETS.length];
          if (!chosen) return select.focus();
          settings.removePreset(chosen.name);
          redraw();
        },
      }),
    );
  }
  return h("div", { class: "param wide" }, h("label", { for: id }, t("preset")), withArrow(select), row);
}

function numberRow(settings: SettingsStore, field: NumberField, label: string): HTMLElement {
  const range = RANGES[field];
  const card = settings.card;
  const max = field === "max_tokens" ? Math.min(range.max, card?.context_tokens ?? range.max) : range.max;
  const id = `field-${++nextId}`;
  const value = settings.value[field];
  const text = h("input", { class: "field", id, inputmode: "decimal", value: typed(value), autocomplete: "off", "aria-describedby": `${id}-e` });
  const slider = h("input", { type: "range", min: range.min, max, step: range.step, value: String(value), "aria-label": label });
  const error = h("p", { class: "fielderr", id: `${id}-e`, hidden: true });
  const check = (): void => {
    const parsed = parseField(field, text.value);
    const wrong = parsed === null || parsed > max;
    error.hidden = !wrong;
    text.toggleAttribute("aria-invalid", wrong);
    if (wrong) {
      text.setAttribute("aria-invalid", "true");
      error.textContent = t("out_of_range", { name: label, min: num(range.min, range.min % 1 ? 2 : 0), max: num(max) });
      return;
    }
    text.removeAttribute("aria-invalid");
    slider.value = String(parsed);
    settings.set({ [field]: parsed });
  };
  text.addEventListener("input", check);
  slider.addEventListener("input", () => {
    text.value = typed(Number(slider.value));
    check();
  });
  return h("div", { class: "param" }, h("label", { for: id }, label), text, slider, error);
}

function seedRow(settings: SettingsStore): HTMLElement {
  const id = `field-${++nextId}`;
  const input = h("input", { class: "field", id, inputmode: "numeric", value: settings.value.seed === null ? "" : String(settings.value.seed), placeholder: t("random"), autocomplete: "off" });
  const error = h("p", { class: "fielderr", hidden: true });
  input.addEventListener("input", () => {
    const text = input.value.trim();
    const seed = text === "" ? null : Number(text);
    const wrong = seed !== null && (!Number.isInteger(seed) || seed < 0 || seed > 2 ** 31 - 1);
    error.hidden = !wrong;
    if (wrong) {
      input.setAttribute("aria-invalid", "true");
      error.textContent = t("out_of_range", { name: t("seed"), min: "0", max: num(2 ** 31 - 1) });
    } else {
      input.removeAttribute("aria-invalid");
      settings.set({ seed });
    }
  });
  return h("div", { class: "param" }, h("label", { for: id }, t("seed")), input, error);
}

function stopRow(settings: SettingsStore): HTMLElement {
  const id = `field-${++nextId}`;
  const input = h("textarea", { class: "field", id, rows: 2, placeholder: t("stop_placeholder") });
  const error = h("p", { class: "fielderr", hidden: true });
  input.value = settings.value.stop.join("\n");
  input.addEventListener("input", () => {
    const stop = input.value.split("\n").filter((line) => line !== "");
    error.hidden = stop.length <= 8;
    error.textContent = t("too_many_stops", { n: stop.length });
    if (stop.length <= 8) settings.set({ stop });
  });
  return h("div", { class: "param wide" }, h("label", { for: id }, t("stop_strings")), input, error);
}

function systemRow(settings: SettingsStore): HTMLElement {
  const id = `field-${++nextId}`;
  const input = h("textarea", { class: "field", id, rows: 4, placeholder: t("system_placeholder"), dir: "auto" });
  input.value = settings.value.system;
  input.addEventListener("input", () => settings.set({ system: input.value }));
  return h("div", { class: "param wide" }, h("label", { for: id }, t("system_prompt")), input);
}
