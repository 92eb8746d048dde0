"""The preview image of a link, 1200 x 630: code with the time of each line, decode rate and badge, title below."""

import re
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from playground.config import BASE_DIR
from playground.sharing.models import ShareLink, SharePreview

SIZE = (1200, 630)
FONTS = BASE_DIR / "frontend" / "src" / "fonts"
BACK, FACE, LINE, INK, INK_2, INK_3, SIGNAL = "#101310", "#0A0D0A", "#2B322B", "#ECEFE8", "#B4BDB2", "#8F9A8E", "#CDEB4A"
CODE_WIDTH, CODE_HEIGHT, ROW = 720, 500, 26
FENCE = re.compile(r"^```[^\n]*\n(.*?)(?:^```|\Z)", re.DOTALL | re.MULTILINE)


def preview_png(link: ShareLink) -> bytes:
    """Made once for each published version and kept with the link."""
    kept = SharePreview.objects.filter(link=link, version=link.version).first()
    if kept:
        return bytes(kept.png)
    png = preview_draw(title=link.title, snapshot=link.snapshot)
    SharePreview.objects.update_or_create(link=link, defaults={"version": link.version, "png": png})
    return png


def preview_draw(*, title: str, snapshot: dict) -> bytes:
    image = Image.new("RGB", SIZE, BACK)
    draw = ImageDraw.Draw(image)
    answer = snapshot["turns"][-1]["answer"]
    if answer["trace"]:
        _draw_code(draw, answer, CODE_WIDTH)
        _draw_speed(draw, answer, snapshot["model"])
    else:  # of an import, whose text is all there is
        _draw_code(draw, answer, SIZE[0])
    draw.line([(0, CODE_HEIGHT), (SIZE[0], CODE_HEIGHT)], fill=LINE)
    draw.text((40, 525), _fit(title, _font("plex-sans", 36, 600), 1120), font=_font("plex-sans", 36, 600), fill=INK)
    draw.text((40, 578), "monokernel", font=_font("plex-sans", 22), fill=INK_3)
    words = "Shared demo, replayed at the recorded speed" if answer["trace"] else "Shared demo"
    draw.text((1160, 578), words, font=_font("plex-sans", 22), fill=INK_3, anchor="ra")
    out = BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def _draw_code(draw: ImageDraw.ImageDraw, answer: dict, width: int) -> None:
    draw.rectangle([(0, 0), (width, CODE_HEIGHT)], fill="#0D100D")
    draw.line([(width, 0), (width, CODE_HEIGHT)], fill=LINE)
    code, small = _font("plex-mono", 19), _font("plex-sans", 16)
    for row, (seconds, line) in enumerate(_rows(answer, CODE_HEIGHT // ROW - 1)):
        y = 14 + row * ROW
        if seconds is not None:
            draw.text((84, y + 3), f"{seconds:.3f}", font=small, fill=INK_3, anchor="ra")
        draw.text((112, y), _fit(line, code, width - 128), font=code, fill=INK)
    draw.line([(98, 0), (98, CODE_HEIGHT)], fill=LINE)


def _rows(answer: dict, most: int) -> list[tuple[float | None, str]]:
    """Lines of the first code block, or of the text, each with the engine seconds at which it began."""
    text = answer["text"]
    block = FENCE.search(text)
    start, body = (block.start(1), block.group(1)) if block else (0, text)
    rows, at = [], start
    for line in body.split("\n")[:most]:
        rows.append((_seconds_at(answer["trace"], at), line.expandtabs(4)))
        at += len(line) + 1
    return rows


def _seconds_at(trace: list, offset: int) -> float | None:
    reached = 0
    for characters, _, elapsed_ms in trace:
        reached += characters
        if reached > offset:
            return elapsed_ms / 1000
    return None


def _draw_speed(draw: ImageDraw.ImageDraw, answer: dict, model: dict) -> None:
    draw.rectangle([(CODE_WIDTH + 1, 0), (SIZE[0], CODE_HEIGHT - 1)], fill=FACE)
    x, rate = CODE_WIDTH + 48, (answer["timings"] or {}).get("decode_tokens_per_s")
    figure, unit = _font("barlow-figure", 168), _font("plex-sans", 28)
    if rate:
        number = f"{rate:,.0f}"
        draw.text((x - 6, 210), number, font=figure, fill=SIGNAL, anchor="ls")
        draw.text((x, 258), "tok/s decode rate", font=unit, fill=INK_2, anchor="ls")
    usage, timings = answer["usage"] or {}, answer["timings"] or {}
    facts = []
    if usage.get("completion_tokens"):
        facts.append(f"{usage['completion_tokens']:,} tokens")
    if timings.get("total_ms"):
        facts.append(f"{timings['total_ms'] / 1000:.2f} s")
    if timings.get("ttft_ms"):
        facts.append(f"first token {timings['ttft_ms']:.0f} ms")
    draw.text((x, 320), _fit("  ·  ".join(facts), _font("plex-sans", 22), 400), font=_font("plex-sans", 22), fill=INK)
    for row, fact in enumerate(badge(model)):
        draw.text((x, 372 + 32 * row), _fit(fact, _font("plex-sans", 22), 400), font=_font("plex-sans", 22), fill=INK_2)


def badge(model: dict) -> list[str]:
    """Machine, precision and model, as far as they are known."""
    device = re.sub(r"^NVIDIA ", "", model.get("device") or "")
    if model.get("gpus"):
        device = f"{model['gpus']} × {device}"
    return [part for part in (device, model.get("precision"), model.get("title")) if part]


def _font(name: str, size: int, weight: int = 0) -> ImageFont.FreeTypeFont:
    font = ImageFont.truetype(Path(FONTS / f"{name}.woff2"), size)
    if weight:
        font.set_variation_by_axes([weight])
    return font


def _fit(text: str, font: ImageFont.FreeTypeFont, width: int) -> str:
    """Cut with an ellipsis where it is too long. Characters that the font lacks are drawn as its empty box."""
    if font.getlength(text[:400]) <= width and len(text) <= 400:
        return text
    text = text[:400]
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"
