"""Subset the three faces into src/fonts/ (run by hand after a font update: `pip install fonttools brotli`, then this file).

Latin, punctuation and the signs the interface uses; unhinted, because the hinted files lose the dots of i at 13 px.
"""

from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont
from fontTools.varLib import instancer

HERE = Path(__file__).resolve().parent.parent
PACKAGES = HERE / "node_modules"
TEXT = [*range(0x20, 0x7F), *range(0xA0, 0x100), 0x152, 0x153, 0x178, 0x2009, 0x202F, 0x2212, 0x20AC]
TEXT += [
    0x2013,
    0x2014,
    0x2018,
    0x2019,
    0x201A,
    0x201C,
    0x201D,
    0x201E,
    0x2026,
    0x2022,
    0x2039,
    0x203A,
    0x2190,
    0x2191,
    0x2192,
    0x2193,
    0x2260,
    0x2264,
    0x2265,
]
MONO = [*range(0x20, 0x7F), *range(0xA0, 0x100), 0x2013, 0x2018, 0x2019, 0x201C, 0x201D, 0x2026, 0x2192]
FIGURE = [ord(sign) for sign in "0123456789.,–- "] + [0x2009, 0x202F]
FACES = [
    (
        "@fontsource-variable/ibm-plex-sans/files/ibm-plex-sans-latin-wght-normal.woff2",
        "plex-sans.woff2",
        TEXT,
        ["kern", "tnum", "lnum", "liga"],
    ),
    ("@fontsource/ibm-plex-mono/files/ibm-plex-mono-latin-400-normal.woff2", "plex-mono.woff2", MONO, ["zero"]),
    (
        "@fontsource/barlow-semi-condensed/files/barlow-semi-condensed-latin-500-normal.woff2",
        "barlow-figure.woff2",
        FIGURE,
        ["tnum", "lnum"],
    ),
]


def write(source: Path, target: Path, codepoints: list[int], features: list[str]) -> None:
    font = TTFont(source)
    options = subset.Options(hinting=False, layout_features=features, flavor="woff2", name_IDs=[0, 1, 2, 13, 14], notdef_outline=True)
    worker = subset.Subsetter(options)
    worker.populate(unicodes=codepoints)
    worker.subset(font)
    if "fvar" in font:
        font = instancer.instantiateVariableFont(font, {"wght": (400, 600)})
    font.flavor = "woff2"
    font.save(target)
    print(f"{target.name}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    out = HERE / "src" / "fonts"
    out.mkdir(exist_ok=True)
    for package, name, codepoints, features in FACES:
        write(PACKAGES / package, out / name, codepoints, features)
