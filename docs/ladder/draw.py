#!/usr/bin/env python3
"""Draws the pictures of the ladder's pages, and writes their tables, from a trace of the simulated
kernels.

    ./lockstep count 'gemm*' 'sum*' softmax --trace trace.json
    docs/ladder/draw.py trace.json            # writes docs/ladder/pictures/*.svg and the tables
    docs/ladder/draw.py --check trace.json    # fails if one of them is not what it would write

A picture has panels, and a panel shows one request: the accesses of a warp's 32 lanes by one
instruction. Requests of global memory are shown with the 32-byte sectors that they touch, requests
of shared memory with the 32 banks, wavefront by wavefront. Nothing is drawn by hand: what a panel
says in figures is computed from the addresses, as simt/counters/requests.cpp counts them.
"""

import glob
import json
import os
import sys

from pictures import PICTURES
from tables import with_tables

HERE = os.path.dirname(os.path.abspath(__file__))
LEFT, RIGHT, WIDTH = 8, 836, 844
WORD, SECTOR = 4, 32

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.t { font-weight: 600; }
.s { font-size: 11px; fill: #59636e; }
.n { font-size: 8px; }
.m { font-size: 10px; }
.page { fill: #ffffff; }
.empty { fill: #f6f8fa; stroke: #9aa4af; }
.q0 { fill: #e4edf9; stroke: #59636e; }
.q1 { fill: #a9caf0; stroke: #59636e; }
.q2 { fill: #2f6fb5; stroke: #59636e; }
.q3 { fill: #143258; stroke: #59636e; }
.many { fill: #f3c88b; stroke: #59636e; }
.over { fill: #ffffff; }
.dark { fill: #1f2328; }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117; }
text { fill: #e6edf3; }
.s { fill: #a4afba; }
.empty { fill: #161b22; stroke: #59636e; }
.q3 { fill: #0b2545; stroke: #7d8894; }
.over { fill: #ffffff; }
.dark { fill: #1f2328; }
}
"""


def ranges(numbers, comma=", "):
    """[0, 1, 2, 5] as "0–2, 5"."""
    parts = []
    for n in sorted(numbers):
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return comma.join(f"{a}" if a == b else f"{a}{comma}{b}" if b == a + 1 else f"{a}–{b}"
                      for a, b in parts)


# What a request costs.


def words_of(request, lane):
    """The words of 4 bytes that a lane accesses, by their numbers in memory."""
    offset = request["lanes"][lane]
    if offset is None:
        return []
    return range(offset // WORD, (offset + request["bytes"] - 1) // WORD + 1)


def lanes_by_word(request, lanes=range(32)):
    found = {}
    for lane in lanes:
        for word in words_of(request, lane):
            found.setdefault(word, []).append(lane)
    return found


def sectors_of(request):
    return sorted({word * WORD // SECTOR for word in lanes_by_word(request)})


def groups_of(request):
    """The lanes whose accesses of shared memory go together: accesses of 8 bytes by half warps,
    those of 16 bytes by quarters."""
    size = 32 if request["bytes"] <= 4 else 16 if request["bytes"] == 8 else 8
    return [range(first, first + size) for first in range(0, 32, size)]


def wavefronts_of(request):
    """Of each pass over the banks, a wavefront: {word: lanes}, at most one word in a bank."""
    wavefronts = []
    for group in groups_of(request):
        first = len(wavefronts)
        in_bank = {}
        for word, lanes in sorted(lanes_by_word(request, group).items()):
            at = first + in_bank.setdefault(word % 32, 0)
            in_bank[word % 32] += 1
            while len(wavefronts) <= at:
                wavefronts.append({})
            wavefronts[at][word] = lanes
    return wavefronts


# Drawing.


class Drawing:
    def __init__(self, title):
        self.title, self.parts, self.y = title, [], 8

    def text(self, x, y, words, kind="s", anchor="start"):
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">'
                          f'{words}</text>')

    def box(self, x, y, width, height, kind):
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" '
                          f'height="{height:g}"/>')

    def cell(self, x, y, width, height, lanes):
        """A piece of memory that these lanes access, and their numbers if there is room."""
        quarters = {lane // 8 for lane in lanes}
        kind = f"q{quarters.pop()}" if len(quarters) == 1 else "many"
        self.box(x, y, width, height, kind)
        ink = "over" if kind in ("q2", "q3") else "dark"
        size, letter = ("n", 4.7) if width < 40 else ("m", 6)
        words = ranges(lanes, "," if width < 40 else ", ")
        if len(words) * letter <= width:
            self.text(x + width / 2, y + height / 2 + (3 if size == "n" else 3.5), words,
                      f"{size} {ink}", "middle")

    def legend(self):
        x = LEFT
        for q in range(4):
            self.box(x, self.y, 14, 12, f"q{q}")
            self.text(x + 19, self.y + 10, f"lanes {8 * q}–{8 * q + 7}")
            x += 105
        self.box(x, self.y, 14, 12, "many")
        self.text(x + 19, self.y + 10, "lanes of several of these")
        self.box(x + 165, self.y, 14, 12, "empty")
        self.text(x + 184, self.y + 10, "nobody")
        self.y += 24

    def svg(self):
        height = self.y + 4
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
                f'width="{WIDTH}" role="img">\n<title>{self.title}</title>\n'
                f'<style>{STYLE}</style>\n'
                f'<rect class="page" width="{WIDTH}" height="{height:g}" rx="2"/>\n'
                + "\n".join(self.parts) + "\n</svg>\n")


def runs_of(words):
    """Neighbouring words that the same lanes access: [(first word, how many, lanes)]."""
    runs = []
    for word, lanes in sorted(words.items()):
        last = runs[-1] if runs else None
        # A run stays inside of a sector, and of the 32 banks.
        if last and last[0] + last[1] == word and last[2] == lanes and word % 8:
            last[1] += 1
        else:
            runs.append([word, 1, lanes])
    return runs


def draw_global(drawing, request):
    word_width, height = 11.75, 17
    words, sectors = lanes_by_word(request), sectors_of(request)
    first = sectors[0] * SECTOR
    x, before = LEFT, None
    for sector in sectors:
        if before is not None:
            x += 3 if sector == before + 1 else 8
        if x + 8 * word_width > RIGHT + 1:
            x, drawing.y = LEFT, drawing.y + height + 18
        drawing.box(x, drawing.y, 8 * word_width, height, "empty")
        inside = {w: lanes for w, lanes in words.items() if w * WORD // SECTOR == sector}
        for word, count, lanes in runs_of(inside):
            drawing.cell(x + word % 8 * word_width, drawing.y, count * word_width, height, lanes)
        drawing.text(x, drawing.y + height + 11, f"+{sector * SECTOR - first}")
        if any(len(lanes) > 1 for lanes in inside.values()):
            all_lanes = {lane for lanes in inside.values() for lane in lanes}
            drawing.text(x + 8 * word_width, drawing.y + height + 11, ranges(all_lanes), "s", "end")
        x, before = x + 8 * word_width, sector
    drawing.y += height + 24


def draw_shared(drawing, request, most):
    bank_width, height, left = 24, 17, 68
    drawing.text(LEFT, drawing.y + 9, "wavefront")
    for bank in range(0, 32, 4):
        drawing.text(left + bank * bank_width, drawing.y + 9, f"bank {bank}", "s")
    drawing.y += 13
    wavefronts = wavefronts_of(request)
    for number, words in enumerate(wavefronts[:most]):
        drawing.text(left - 6, drawing.y + 13, f"{number + 1}", "s", "end")
        drawing.box(left, drawing.y, 32 * bank_width, height, "empty")
        for word, count, lanes in runs_of(words):
            drawing.cell(left + word % 32 * bank_width, drawing.y, count * bank_width, height,
                         lanes)
        drawing.y += height + 3
    if len(wavefronts) > most:
        drawing.text(left, drawing.y + 9, f"and {len(wavefronts) - most} more")
        drawing.y += 13
    drawing.y += 9


def draw_chunks(drawing, chunks, rows):
    """Where the copy engine puts the 16-byte chunks of the first rows of a box: `chunks` are pairs
    (in the matrix, in the box); or where they would lie without a swizzle."""
    chunk_width, height, left = 96, 17, 68
    for bank in range(0, 32, 4):
        drawing.text(left + bank * 24, drawing.y + 9, f"bank {bank}", "s")
    drawing.y += 13
    for index, place in enumerate(chunks):
        row, column = place // 128, place % 128 // 16
        kind = "many" if index % 8 == 0 else "empty"
        x, y = left + column * chunk_width, drawing.y + row * (height + 3)
        drawing.box(x, y, chunk_width, height, kind)
        drawing.text(x + chunk_width / 2, y + 12.5, f"row {index // 8}, chunk {index % 8}",
                     "m" + (" dark" if kind == "many" else ""), "middle")
    drawing.y += rows * (height + 3) + 9


# Panels.


def launch_of(trace, operation, kernel):
    for counted in trace:
        if counted["operation"] + " " + counted["size"] == operation:
            for launch in counted["launches"]:
                if launch["kernel"] == kernel:
                    return launch
    raise SystemExit(f"the trace has no {kernel} of {operation}")


def request_of(launch, panel):
    """The n-th request of this kind, file and memory."""
    found = [r for r in launch["requests"]
             if r["kind"] == panel["kind"] and panel["file"] in r["at"]
             and r["bytes"] == panel.get("bytes", r["bytes"])]
    memories = sorted({r["memory"] for r in found})
    if panel.get("memory", 0) >= len(memories):
        raise SystemExit(f"the trace has no such request: {panel}")
    found = [r for r in found if r["memory"] == memories[panel.get("memory", 0)]]
    request = dict(found[panel.get("request", 0)])
    if "rows" in panel:  # as it would be with rows of another length
        old, new = panel["rows"]
        request["lanes"] = [offset if offset is None else offset // old * new + offset % old
                            for offset in request["lanes"]]
    return request


def plural(count, word):
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def cost_of(request):
    if "shared" in request["kind"]:
        best = sum(any(request["lanes"][lane] is not None for lane in group)
                   for group in groups_of(request))
        return f"{plural(len(wavefronts_of(request)), 'wavefront')}; the fewest: {best}"
    asked = len(lanes_by_word(request)) * WORD
    sectors = len(sectors_of(request))
    return f"{plural(sectors, 'sector')}: {sectors * SECTOR} bytes for {asked}"


def draw_panel(drawing, trace, panel):
    launch = launch_of(trace, panel["operation"], panel["kernel"])
    drawing.y += 14
    drawing.text(LEFT, drawing.y, panel["says"], "t")
    drawing.y += 16
    if panel["kind"] == "box":
        rows = 8
        places = [to for _, to in launch["chunks"][:rows * 8]]
        if panel.get("plain"):
            places = list(range(0, rows * 128, 16))
        column = [place for index, place in enumerate(places) if index % 8 == 0]
        cost = len(wavefronts_of({"bytes": 16, "lanes": column + [None] * 24}))
        drawing.text(LEFT, drawing.y, f"chunk 0 of eight rows: {plural(cost, 'wavefront')}")
        drawing.y += 7
        draw_chunks(drawing, places, rows)
        return
    request = request_of(launch, panel)
    source = "" if "rows" in panel else request["at"].rsplit("/")[-1].rsplit(":")[0] + ", "
    drawing.text(LEFT, drawing.y, f"{source}{request['kind']}, {request['bytes']} bytes per lane: "
                 + cost_of(request))
    drawing.y += 7
    if "shared" in request["kind"]:
        draw_shared(drawing, request, panel.get("most", 32))
    else:
        draw_global(drawing, request)


def text_of(path):
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read()


def picture_of(trace, title, panels):
    drawing = Drawing(title)
    if any(panel["kind"] != "box" for panel in panels):
        drawing.legend()
    for panel in panels:
        draw_panel(drawing, trace, panel)
    return drawing.svg()


def main(arguments):
    check = "--check" in arguments
    files = [argument for argument in arguments if argument != "--check"]
    if len(files) != 1:
        raise SystemExit(__doc__)
    with open(files[0], encoding="utf-8") as file:
        trace = json.load(file)
    fresh = {os.path.join(HERE, "pictures", name + ".svg"): picture_of(trace, title, panels)
             for name, (title, panels) in PICTURES.items()}
    for page in sorted(glob.glob(os.path.join(HERE, "*.md"))):
        fresh[page] = with_tables(trace, text_of(page))
    stale = [path for path, text in fresh.items() if text_of(path) != text]
    if not check:
        for path in stale:
            with open(path, "w", encoding="utf-8") as file:
                file.write(fresh[path])
    elif stale:
        raise SystemExit("not as docs/ladder/draw.py TRACE would write them now: "
                         + ", ".join(os.path.relpath(path, HERE) for path in stale))


if __name__ == "__main__":
    main(sys.argv[1:])
