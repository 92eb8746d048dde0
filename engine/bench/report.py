"""The benchmark's report: text for people, a dict for machines, an SVG bar chart."""

from html import escape
from pathlib import Path

BAR, GAP, LEFT, WIDTH = 34, 14, 260, 520  # pixels


def text(report: dict) -> str:
    """Aligned lines; every figure with what it was measured on."""
    info, speed = report["engine"], report["speed"]
    lines = [
        f"model          {info['model']} ({info['parameters'] / 1e9:.3f} B parameters, {info['bytes_per_token'] / 1e9:.3f} GB per token)",
        f"device         {info['gpus']} x {info['device']}, driver {report['driver']}"
        if info["gpus"]
        else f"device         {info['device']}",
        f"software       torch {report['torch']}, triton {report['triton']}",
        f"backend        {info['backend']} ({report['kernel']}), {info['dtype']}, batch 1, greedy",
        f"lengths        {speed['prompt_tokens']} prompt tokens, {speed['output_tokens']} output tokens, median of {speed['runs']} runs",
        f"decode         {speed['decode_tokens_per_s']:,.1f} tokens/s (from {speed['decode_tokens_per_s_min']:,.1f} "
        f"to {speed['decode_tokens_per_s_max']:,.1f})",
        f"TTFT           {speed['ttft_ms']:.2f} ms (at most {speed['ttft_ms_max']:.2f})",
    ]
    if report["read_bandwidth"]:
        lines.append(
            f"read bandwidth {report['read_bandwidth'] / 1e12:.2f} TB/s measured; bound {report['bound_tokens_per_s']:,.0f} tokens/s; "
            f"MBU {report['mbu_measured']:.1%} of measured"
            + (f", {report['mbu_datasheet']:.1%} of datasheet" if report["mbu_datasheet"] else "")
        )
    if report.get("exchange"):
        lines.append(_exchange_line(report["exchange"], speed["decode_tokens_per_s"]))
    for phase in report.get("profile") or []:
        lines.append(
            f"phase          {phase['name']:22} x{phase['count']:<3} work {phase['work_us']:7.1f} us (slowest {phase['slowest_us']:7.1f}), "
            f"wait {phase['wait_us']:6.1f} us, {phase['bytes'] / 1e6:7.1f} MB"
        )
    return "\n".join(lines)


def _exchange_line(exchange: dict, tokens_per_s: float) -> str:
    times = {kind: exchange[f"{kind}_wait_us"] for kind in ("delayed", "present", "agreement")}
    waits = ", ".join(f"{kind} {time:.1f} us ({time * tokens_per_s / 1e6:.1%})" for kind, time in times.items())
    layer = (times["delayed"] + times["present"]) / exchange["layers"]
    return (
        f"exchange       waits per token: {waits}; {layer:.2f} us a layer; "
        f"{exchange['pushed_bytes'] * tokens_per_s / 1e9:.1f} GB/s pushed by each GPU"
    )


def rival_text(report: dict) -> str:
    """One line for each form of the rival."""
    speed, lines = report["speed"], []
    for name, value in report["rival"].items():
        ratio = speed["decode_tokens_per_s"] / value
        lines.append(f"rival          PyTorch {name} + CUDA graph: {value:,.1f} tokens/s; this engine is {ratio:.2f} x")
    return "\n".join(lines)


def bars(report: dict) -> list[tuple[str, float]]:
    """(label, tokens/s) of everything that was measured, the bound last."""
    result = [(f"this engine ({report['kernel']})", report["speed"]["decode_tokens_per_s"])]
    result += [(f"PyTorch {name} + CUDA graph", value) for name, value in (report.get("rival") or {}).items()]
    if report["bound_tokens_per_s"]:
        result.append(("read bound (measured bandwidth)", report["bound_tokens_per_s"]))
    return result


def write_plot(report: dict, path: Path) -> None:
    """Decode tokens/s as an SVG bar chart."""
    rows = bars(report)
    longest = max(value for _, value in rows)
    height = 60 + len(rows) * (BAR + GAP)
    info = report["engine"]
    title = f"Decode tokens/s, {info['model']}, {info['dtype']}, batch 1, {info['device']}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 110}" height="{height}" font-family="sans-serif" font-size="14">',
        f'<text x="10" y="26" font-size="16">{escape(title)}</text>',
    ]
    for index, (label, value) in enumerate(rows):
        y = 46 + index * (BAR + GAP)
        parts.append(f'<text x="{LEFT - 10}" y="{y + 22}" text-anchor="end">{escape(label)}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH * value / longest:.0f}" height="{BAR}" fill="#4878a8"/>')
        parts.append(f'<text x="{LEFT + WIDTH * value / longest + 8:.0f}" y="{y + 22}">{value:,.0f}</text>')
    path.write_text("\n".join([*parts, "</svg>\n"]))
