"""The tables of the ladder's pages: totals of one operation, beside those of others.

A page says where a table is, and of which operations of docs/counters.md:

    <!-- counted: 04; 05; sum_rows 256x1024 -->
    ...
    <!-- end of table -->

"05" is rung 5, "11 wide" its large tiles, "12 NT" a layout other than NN, always of 256x256x64.
draw.py writes the lines between from a trace, and checks them.
"""

import re

BLOCK = re.compile(r"(<!-- counted: (.+?) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def total(launch, figure, *kinds):
    return sum(launch.get(kind, {}).get(figure, 0) for kind in kinds)


COLUMNS = {
    "loads of global memory": lambda launch: total(launch, "requests", "global load",
                                                   "cp.async, global"),
    "sectors read": lambda launch: total(launch, "sectors", "global load", "cp.async, global")
    + launch["tma_bytes"] // 32,
    "sectors written": lambda launch: total(launch, "sectors", "global store"),
    "loads of shared memory": lambda launch: total(launch, "requests", "shared load"),
    "their wavefronts": lambda launch: total(launch, "wavefronts", "shared load"),
    "wavefronts to fill it": lambda launch: total(launch, "wavefronts", "shared store",
                                              "cp.async, shared"),
    "shuffles": lambda launch: sum(times for name, times in launch["instructions"].items()
                                   if name.startswith("__shfl")),
    "barriers of a block": lambda launch: sum(
        times for name, times in launch["instructions"].items()
        if name.startswith("__syncthreads")) // (launch["grid"][0] * launch["grid"][1]),
}


def counted_as(trace, item):
    """The operation of the trace, and what the table calls it."""
    rung = re.fullmatch(r"(\d\d)( wide)?( [NT][NT])?", item)
    for counted in trace:
        name, size = counted["operation"], counted["size"]
        if rung is None:
            if f"{name} {size}" == item:
                return counted, item
        elif (name.startswith(f"gemm_{rung[1]}_") and name.endswith("_wide") == bool(rung[2])
              and size == "256x256x64" + (rung[3] or " NN")):
            wide = ", wide tiles" if rung[2] else ""
            return counted, f"rung {int(rung[1])}{wide}" + (f",{rung[3]}" if rung[3] else "")
    raise SystemExit(f"the trace has no '{item}'")


def rows_of(trace, items):
    rows = []
    for item in items.split(";"):
        counted, label = counted_as(trace, item.strip())
        for launch in counted["launches"]:
            alone = len(counted["launches"]) == 1
            rows.append((label if alone else f"{label}: {launch['kernel']}",
                         [column(launch) for column in COLUMNS.values()]))
    return rows


def table_of(trace, items):
    rows = rows_of(trace, items)
    shown = [c for c in range(len(COLUMNS)) if any(figures[c] for _, figures in rows)]
    names = list(COLUMNS)
    lines = ["| | " + " | ".join(names[c] for c in shown) + " |",
             "|---|" + "---:|" * len(shown)]
    for label, figures in rows:
        lines.append(f"| {label} | " + " | ".join(f"{figures[c]:,}" if figures[c] else ""
                                                  for c in shown) + " |")
    return "\n".join(lines) + "\n"


def with_tables(trace, text):
    """A page's text with the tables as they are counted now."""
    return BLOCK.sub(lambda found: found[1] + "\n" + table_of(trace, found[2]) + "\n" + found[4],
                     text)
