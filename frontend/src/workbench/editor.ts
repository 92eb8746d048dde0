import { defaultKeymap, history, historyKeymap, indentLess, insertTab } from "@codemirror/commands";
import { css } from "@codemirror/lang-css";
import { html } from "@codemirror/lang-html";
import { javascript } from "@codemirror/lang-javascript";
import { python } from "@codemirror/lang-python";
import { bracketMatching, indentOnInput, indentUnit } from "@codemirror/language";
import { unifiedMergeView } from "@codemirror/merge";
import { search, searchKeymap } from "@codemirror/search";
import { EditorSelection, EditorState, Prec, RangeSet, RangeSetBuilder, StateEffect, StateField, type Extension } from "@codemirror/state";
import { Decoration, EditorView, GutterMarker, ViewPlugin, drawSelection, gutter, gutterLineClass, highlightSpecialChars, keymap, lineNumbers, type DecorationSet, type ViewUpdate } from "@codemirror/view";
import { seconds } from "../i18n";
import { languageFamily, tokenizeLine, type LineState } from "./tokens";

type Translate = (key: string, vars?: object) => string;

export interface EditorOptions {
  parent: HTMLElement;
  code: string;
  language: string;
  label: string;
  describedBy: string;
  /** Engine time in ms at which each line began, -1 where unknown. */
  times: number[];
  readOnly: boolean;
  scrollTop: number;
  /** px */
  lineHeight: number;
  t: Translate;
  onChange: (code: string) => void;
  onEscape: () => void;
  onTopLine: (line: number) => void;
}

export interface Editor {
  readonly view: EditorView;
  code(): string;
  scrollTop(): number;
  setCaret(line: number, column: number): void;
  mark(line: number, message: string): void;
  clearMarks(): void;
  reveal(line: number): void;
  focus(): void;
  destroy(): void;
}

const CLASSES = Object.fromEntries(["k", "st", "nu", "co", "ty"].map((name) => [name, Decoration.mark({ class: name })]));

/** Colours with the same tokenizer as the light view, for the visible lines only. */
function colours(language: string): Extension {
  return ViewPlugin.fromClass(
    class {
      decorations: DecorationSet;
      private states: LineState[] = [""];

      constructor(view: EditorView) {
        this.decorations = this.build(view);
      }

      update(update: ViewUpdate): void {
        if (update.docChanged) {
          let from = update.state.doc.length;
          update.changes.iterChangedRanges((_a, _b, start) => (from = Math.min(from, start)));
          this.states.length = Math.min(this.states.length, update.state.doc.lineAt(from).number);
        }
        if (update.docChanged || update.viewportChanged) this.decorations = this.build(update.view);
      }

      private build(view: EditorView): DecorationSet {
        const builder = new RangeSetBuilder<Decoration>();
        const doc = view.state.doc;
        for (const { from, to } of view.visibleRanges) {
          const last = doc.lineAt(to).number;
          const first = doc.lineAt(from).number;
          for (let number = this.states.length; number < first; number++) this.states[number] = tokenizeLine(language, doc.line(number).text, this.states[number - 1]!).state;
          for (let number = first; number <= last; number++) {
            const line = doc.line(number);
            const { spans, state } = tokenizeLine(language, line.text, this.states[number - 1]!);
            this.states[number] = state;
            for (const span of spans) builder.add(line.from + span.from, line.from + span.to, CLASSES[span.cls]!);
          }
        }
        return builder.finish();
      }
    },
    { decorations: (plugin) => plugin.decorations },
  );
}

class TimeMarker extends GutterMarker {
  constructor(readonly ms: number) {
    super();
  }
  override eq(other: GutterMarker): boolean {
    return other instanceof TimeMarker && other.ms === this.ms;
  }
  override toDOM(): Node {
    return document.createTextNode(seconds(this.ms));
  }
}

/** The time gutter: a line keeps its time while its start stays, a line typed by hand has none. */
function timeGutter(times: number[]): Extension {
  const field = StateField.define<RangeSet<TimeMarker>>({
    create(state) {
      const builder = new RangeSetBuilder<TimeMarker>();
      for (let number = 1; number <= Math.min(state.doc.lines, times.length); number++) {
        const ms = times[number - 1]!;
        const at = state.doc.line(number).from;
        if (ms >= 0) builder.add(at, at, new TimeMarker(ms));
      }
      return builder.finish();
    },
    update: (markers, transaction) => markers.map(transaction.changes),
  });
  return [field, gutter({ class: "wb-times", markers: (view) => view.state.field(field), initialSpacer: () => new TimeMarker(0) })];
}

const setMarks = StateEffect.define<{ line: number; message: string } | null>();

class BadLine extends GutterMarker {
  override elementClass = "wb-badline";
}

const marks = StateField.define<{ lines: DecorationSet; gutters: RangeSet<GutterMarker> }>({
  create: () => ({ lines: Decoration.none, gutters: RangeSet.empty }),
  update(value, transaction) {
    let { lines, gutters } = value;
    if (transaction.docChanged) {
      lines = lines.map(transaction.changes);
      gutters = gutters.map(transaction.changes);
    }
    for (const effect of transaction.effects) {
      if (!effect.is(setMarks)) continue;
      if (effect.value === null) return { lines: Decoration.none, gutters: RangeSet.empty };
      const at = transaction.state.doc.line(Math.min(effect.value.line + 1, transaction.state.doc.lines)).from;
      lines = lines.update({ add: [Decoration.line({ class: "wb-bad", attributes: { title: effect.value.message } }).range(at)] });
      gutters = gutters.update({ add: [new BadLine().range(at)] });
    }
    return { lines, gutters };
  },
  provide: (field) => [EditorView.decorations.from(field, (value) => value.lines), gutterLineClass.from(field, (value) => value.gutters)],
});

const SUPPORT: Record<string, () => Extension> = {
  python: () => [python(), indentUnit.of("    ")],
  javascript: () => javascript({ jsx: true }),
  typescript: () => javascript({ typescript: true }),
  html: () => html(),
  css: () => css(),
};

function phrases(t: Translate): Extension {
  const words = ["Find", "Replace", "next", "previous", "all", "match case", "by word", "regexp", "replace", "replace all", "close", "$ unchanged lines"];
  return EditorState.phrases.of(Object.fromEntries(words.map((word) => [word, t(`workbench.search.${word}`)])));
}

function basics(options: EditorOptions): Extension {
  const nonce = document.querySelector<HTMLElement>("script[nonce],style[nonce]")?.nonce;
  return [
    nonce ? EditorView.cspNonce.of(nonce) : [],
    timeGutter(options.times),
    lineNumbers(),
    marks,
    highlightSpecialChars(),
    EditorState.tabSize.of(4),
    colours(options.language),
    phrases(options.t),
    EditorView.contentAttributes.of({ "aria-label": options.label, "aria-describedby": options.describedBy, dir: "ltr", spellcheck: "false", autocapitalize: "off", autocorrect: "off" }),
    EditorView.domEventHandlers({
      scroll: (_event, view) => options.onTopLine(view.state.doc.lineAt(view.lineBlockAtHeight(view.scrollDOM.scrollTop - PADDING_TOP + options.lineHeight - 1).from).number - 1),
      keydown: (event, view) => {
        if (event.key !== "Escape" && event.key !== "Tab" && !["Shift", "Control", "Alt", "Meta"].includes(event.key)) view.setTabFocusMode(false);
        return false;
      },
      blur: (_event, view) => void view.setTabFocusMode(false),
    }),
  ];
}

const PADDING_TOP = 8;

/** Puts the view where the light view was; heights of lines not yet measured do not enter into it. */
function scrolledTo(options: EditorOptions, state: EditorState): StateEffect<unknown> {
  const line = Math.max(0, Math.ceil((options.scrollTop - PADDING_TOP) / options.lineHeight));
  const at = state.doc.line(Math.min(line + 1, state.doc.lines)).from;
  return EditorView.scrollIntoView(at, { y: "start", yMargin: PADDING_TOP + line * options.lineHeight - options.scrollTop });
}

/** The editor proper, on the same metrics as the light view. */
export function openEditor(options: EditorOptions): Editor {
  const state = EditorState.create({
    doc: options.code,
    extensions: [
      basics(options),
      history(),
      drawSelection(),
      indentOnInput(),
      bracketMatching(),
      search({ top: true }),
      SUPPORT[languageFamily(options.language)]?.() ?? [],
      EditorState.readOnly.of(options.readOnly),
      Prec.low(
        keymap.of([
          {
            key: "Escape",
            run: (target) => {
              target.setTabFocusMode(true);
              options.onEscape();
              return true;
            },
          },
        ]),
      ),
      keymap.of([{ key: "Tab", run: insertIndent, shift: indentLess }, ...searchKeymap, ...historyKeymap, ...defaultKeymap]),
      EditorView.updateListener.of((update) => update.docChanged && options.onChange(update.state.doc.toString())),
    ],
  });
  return wrap(new EditorView({ parent: options.parent, state, scrollTo: scrolledTo(options, state) }));
}

/** Tab indents by the language's unit; over a selection it indents the lines. */
function insertIndent(view: EditorView): boolean {
  if (view.state.selection.ranges.some((range) => !range.empty)) return insertTab(view);
  view.dispatch(view.state.update(view.state.replaceSelection(view.state.facet(indentUnit)), { scrollIntoView: true, userEvent: "input" }));
  return true;
}

/** A read-only comparison of `options.code` with `original`, changed lines marked by sign and colour. */
export function openDiff(options: EditorOptions, original: string): Editor {
  const view = new EditorView({
    parent: options.parent,
    state: EditorState.create({
      doc: options.code,
      extensions: [
        basics(options),
        EditorState.readOnly.of(true),
        keymap.of(defaultKeymap),
        unifiedMergeView({ original, mergeControls: false, highlightChanges: true, syntaxHighlightDeletions: false, collapseUnchanged: { margin: 3, minSize: 8 } }),
      ],
    }),
  });
  return wrap(view);
}

function wrap(view: EditorView): Editor {
  const lineStart = (line: number): number => view.state.doc.line(Math.min(Math.max(1, line + 1), view.state.doc.lines)).from;
  return {
    view,
    code: () => view.state.doc.toString(),
    scrollTop: () => view.scrollDOM.scrollTop,
    setCaret(line, column) {
      const at = view.state.doc.lineAt(lineStart(line));
      view.dispatch({ selection: EditorSelection.cursor(Math.min(at.from + column, at.to)) });
    },
    mark: (line, message) => view.dispatch({ effects: setMarks.of({ line, message }) }),
    clearMarks: () => view.dispatch({ effects: setMarks.of(null) }),
    reveal: (line) => view.dispatch({ effects: EditorView.scrollIntoView(lineStart(line), { y: "center" }) }),
    focus: () => view.focus(),
    destroy: () => view.destroy(),
  };
}
