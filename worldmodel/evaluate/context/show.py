"""What the report of `evaluate context` shows: forgetting curves of all arms, and contact sheets of visits."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from worldmodel.evaluate import plots
from worldmodel.evaluate.compare.sheets import sheet
from worldmodel.evaluate.compare.show import colour
from worldmodel.evaluate.context.arms import Measured
from worldmodel.evaluate.context.bench import Bench
from worldmodel.evaluate.context.forgetting import Forgetting
from worldmodel.evaluate.context.similarity import Scale
from worldmodel.evaluate.lettering import INK, SOFT, picture
from worldmodel.evaluate.report import Figure, Picture

SHEETS = 4  # visits of each horizon that are shown


def curve_figure(
    bench: Bench,
    scale: Scale,
    arms: Sequence[Measured],
    found: Sequence[Forgetting],
    what: Literal["score", "retrieval"],
) -> Figure:
    """Score or retrieval against frames out of sight: mean over seeds, band over visits, single seeds thin."""
    frames = bench.horizons.frames
    with plots.axes(9.0, 4.2) as (ax, out):
        for number, (arm, each) in enumerate(zip(arms, found, strict=True)):
            shade = colour(number + (len(arms) == 1))
            low, high = np.array(each.band()).T
            ax.fill_between(frames, low, high, color=shade, alpha=0.13, linewidth=0)
            if len(each.curves) > 1:
                ax.plot(frames, each.curves.T, color=shade, linewidth=0.7, alpha=0.55)
            ax.plot(
                frames, each.curves.mean(0), color=shade, linewidth=2.2, marker="o", markersize=3.5, label=arm.label
            )
        dashed = (0, (4, 2))
        if what == "score":
            ax.axhline(1, color=plots.REAL, linewidth=1, linestyle=dashed, label="tokenizer")
            ax.axhline(0, color="#94a3b8", linewidth=1, linestyle=dashed, label="any room")
        else:
            ax.axhline(scale.chance, color="#94a3b8", linewidth=1, linestyle=dashed, label="chance")
        ax.set_xscale("log", base=2)
        ax.set_xticks(frames, [str(name) for name in bench.horizons.named])
        ax.minorticks_off()
        ax.set_xlabel("frames out of sight")
        ax.set_ylabel(f"{what}, {scale.measure.name}")
        ax.legend(ncols=min(len(arms) + 2, 5), loc="lower left", bbox_to_anchor=(-0.02, 1.0), columnspacing=1.4)
    text = "Mean over training seeds; band: 95 % over visits; thin: single seeds."
    name = "Score of the view come back to" if what == "score" else "The view is found among others"
    return Figure(f"{name}, by {scale.measure.name}", out[0], text, wide=True)


def sheets(bench: Bench, arms: Sequence[Measured]) -> tuple[Picture, ...]:
    """Contact sheets: a column per horizon; the real view before and after, then what each arm's first model drew."""
    fewest = min(len(rows) for rows in bench.horizons.members)
    found = []
    for number in range(min(SHEETS, fewest)):
        rows = np.array([members[number] for members in bench.horizons.members])
        lines = [("look", INK, bench.look[rows]), ("return", INK, bench.real[rows, 0])]
        lines.append(("tokenizer", SOFT, bench.rebuilt[rows, 0]))
        lines += [(arm.label, colour(k + (len(arms) == 1)), arm.found[0].views[rows]) for k, arm in enumerate(arms)]
        heads = [f"{bench.cases[row].visit.horizon} frames" for row in rows]
        episodes = ", ".join(str(bench.cases[row].episode) for row in rows)
        found.append(picture(f"Visits {number + 1} (episodes {episodes})", sheet(lines, heads)))
    return tuple(found)
