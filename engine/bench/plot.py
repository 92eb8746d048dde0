"""The benchmark's report as a picture: an SVG that is readable on light and on dark pages."""

from html import escape
from pathlib import Path

LEFT, WIDTH, RIGHT = 300, 430, 230  # pixels: labels, bars, figures
ROW, BAR = 30, 18
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-size: 16px; font-weight: 600 }
.quiet { fill: #57606a }
.engine, .work { fill: #2f6fb4 }
.rival { fill: #8c959f }
.wait { fill: #d9822b }
.bound { fill: none; stroke: #57606a; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.quiet { fill: #9da7b1 }
.engine, .work { fill: #5b9fe0 }
.rival { fill: #6e7681 }
.wait { fill: #e39a4f }
.bound { stroke: #9da7b1 }
}
</style>"""


def write_plot(report: dict, path: Path) -> None:
    """Decode tokens/s of the engine, every form of the rival and the read bound; below them the phases of a token if there is a profile."""
    parts, y = _speeds(report, 78)
    if report.get("profile"):
        phases, y = _phases(report["profile"], y + 34)
        parts += phases
    path.write_text("\n".join([_head(report, y), *parts, "</svg>\n"]))


def _head(report: dict, height: int) -> str:
    info, speed = report["engine"], report["speed"]
    device = f"{info['gpus']} x {info['device']}" if info["gpus"] > 1 else info["device"]
    what = f"{info['dtype']}, batch 1, {speed['prompt_tokens']} + {speed['output_tokens']} tokens, median of {speed['runs']} runs, {device}"
    size = f'width="{LEFT + WIDTH + RIGHT}" height="{height}" viewBox="0 0 {LEFT + WIDTH + RIGHT} {height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{STYLE}',
            _text(12, 28, f"Decode tokens/s of {info['model']}", "title"),
            _text(12, 50, what, "quiet"),
        ]
    )


def _speeds(report: dict, y: int) -> tuple[list[str], int]:
    """Bars, and where they end."""
    speed, rival, bound = report["speed"], report.get("rival") or {"forms": [], "best": None}, report["bound_tokens_per_s"]
    spread = _range(speed["decode_tokens_per_s_min"], speed["decode_tokens_per_s_max"])
    rows = [(f"this engine ({report['kernel']})", speed["decode_tokens_per_s"], "engine", spread)]
    for form in rival["forms"]:
        note = f"engine is {rival['ratio']:.2f} x this best rival" if form["name"] == rival["best"] else ""
        rows.append((f"PyTorch, {form['name']}", form["decode_tokens_per_s"], "rival", note))
    if bound:
        rows.append(("read bound, measured", bound, "bound", f"{report['mbu_measured']:.1%} of it reached"))
    scale = WIDTH / max(value for _, value, _, _ in rows)
    parts = []
    for label, value, kind, note in rows:
        parts += [_label(y, label), _bar(LEFT, y, value * scale, kind)]
        parts.append(
            f'<text x="{LEFT + value * scale + 8:.0f}" y="{y + 13}">{value:,.0f} <tspan class="quiet">{escape(note)}</tspan></text>'
        )
        y += ROW
    return parts, y


def _range(low: float, high: float) -> str:
    """ "(998 to 1,009)" with the fewest decimals that tell them apart; "" where two do not."""
    for decimals in range(3):
        texts = [f"{value:,.{decimals}f}" for value in (low, high)]
        if texts[0] != texts[1]:
            return f"({texts[0]} to {texts[1]})"
    return ""


def _phases(profile: list[dict], y: int) -> tuple[list[str], int]:
    """A bar of work and wait for each phase, with its bytes, and where they end."""
    parts = [_text(12, y, "A token by phase: mean of the processors, all layers", "title")]
    for x, kind, name in ((LEFT + WIDTH - 60, "work", "work"), (LEFT + WIDTH + 10, "wait", "wait for others, staging")):
        parts += [f'<rect x="{x}" y="{y - 11}" width="12" height="12" class="{kind}"/>', _text(x + 18, y, name, "quiet")]
    scale = WIDTH / max(phase["work_us"] + phase["wait_us"] for phase in profile)
    y += 16
    for phase in profile:
        work, wait = phase["work_us"] * scale, phase["wait_us"] * scale
        figures = f"{phase['work_us']:,.0f} + {phase['wait_us']:,.0f} us" + (f", {phase['bytes'] / 1e6:,.0f} MB" if phase["bytes"] else "")
        parts.append(_label(y, f"{phase['name']} x {phase['count']}"))
        parts += [_bar(LEFT, y, work, "work"), _bar(LEFT + work, y, wait, "wait"), _text(LEFT + work + wait + 8, y + 13, figures, "quiet")]
        y += ROW
    return parts, y


def _label(y: float, content: str) -> str:
    return f'<text x="{LEFT - 12}" y="{y + 13}" text-anchor="end">{escape(content)}</text>'


def _bar(x: float, y: float, width: float, kind: str) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" class="{kind}"/>'


def _text(x: float, y: float, content: str, kind: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}">{escape(content)}</text>'
