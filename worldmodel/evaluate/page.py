"""The HTML report: one file, no script, nothing loaded from anywhere."""

import base64
import html
import tempfile
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from worldmodel.evaluate.report import (
    Figure,
    Film,
    Metric,
    Outcome,
    Picture,
    Report,
    Table,
    device_name,
    rounded,
    said,
    versions,
)
from worldmodel.pixels import enlarge, write_video

STYLE = """
:root { color-scheme: light; --ink: #0f172a; --soft: #64748b; --line: #e2e8f0; --blue: #2563eb; }
* { box-sizing: border-box; }
body { margin: 0; background: #f1f5f9; color: var(--ink); font: 15px/1.55 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 64px; }
header { margin-bottom: 24px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.02em; }
h2 { font-size: 17px; margin: 36px 0 12px; letter-spacing: -0.01em; }
code { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
header code { background: #e2e8f0; padding: 2px 7px; border-radius: 5px; overflow-wrap: anywhere; }
.soft, figcaption, .card small { color: var(--soft); }
.grid { display: grid; gap: 14px; grid-template-columns: repeat(auto-fill, minmax(196px, 1fr)); }
.wide { grid-template-columns: repeat(auto-fill, minmax(min(100%, 500px), 1fr)); }
.card, figure, table { background: #fff; border: 1px solid var(--line); border-radius: 10px; }
.card { padding: 12px 16px 14px; }
.card b { display: block; font-size: 25px; line-height: 1.3; letter-spacing: -0.02em; }
.card b i { font: 400 13px system-ui; color: var(--soft); margin-left: 5px; letter-spacing: 0; }
.card span { font: 12.5px ui-monospace, "DejaVu Sans Mono", monospace; color: var(--soft); }
.verdicts { list-style: none; margin: 16px 0 0; padding: 0; display: grid; gap: 6px; }
.verdicts li { background: #fff; border: 1px solid var(--line); border-left: 5px solid #16a34a; border-radius: 8px;
  padding: 7px 14px; display: flex; gap: 16px; justify-content: space-between; flex-wrap: wrap; }
.verdicts li.no { border-left-color: #dc2626; }
.verdicts li.open { border-left-color: #94a3b8; }
.verdicts span { color: var(--soft); font-variant-numeric: tabular-nums; }
figure { margin: 0; padding: 14px 16px 12px; }
figure h3 { font-size: 14px; margin: 0 0 6px; }
figure svg { width: 100%; height: auto; display: block; }
figure video, figure img { max-width: 100%; display: block; image-rendering: pixelated; border-radius: 5px; }
.whole { grid-column: 1 / -1; }
figcaption { font-size: 13px; margin-top: 6px; }
table { width: 100%; border-collapse: separate; border-spacing: 0; overflow: hidden; font-size: 13.5px; }
th, td { text-align: left; padding: 6px 14px; border-bottom: 1px solid var(--line); }
tr:last-child td { border-bottom: 0; }
th { color: var(--soft); font-weight: 500; background: #f8fafc; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.notes p { margin: 0 0 8px; max-width: 82ch; }
"""


def render(report: Report) -> str:
    """The whole page as text."""
    title = html.escape(report.title or report.command.split(" --")[0])
    made_with = ", ".join(f"{name} {version}" for name, version in versions().items())
    facts = f"{device_name(report.device)} · {made_with} · seeds {', '.join(map(str, report.seeds))}"
    cards = "".join(_card(name, report.metrics[name]) for name in report.headline if name in report.metrics)
    parts = [
        f"<header><h1>{title.removeprefix('worldmodel ').capitalize()}</h1>"
        f"<p><code>{html.escape(report.command)}</code></p>"
        f'<div class="soft">{html.escape(facts)}</div></header>',
        f'<section class="grid">{cards}</section>' if cards else "",
        _verdicts(report.verdicts),
        _section("Side by side", [_film(film) for film in report.films]),
        _section("Curves", [_figure(figure) for figure in report.figures]),
        _section("Pictures", [_picture(picture) for picture in report.pictures]),
        "".join(f"<h2>{html.escape(table.title)}</h2>{_text_table(table)}" for table in report.tables),
        _notes(report.notes),
        f"<h2>All numbers</h2>{_table(report)}",
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _notes(notes: tuple[str, ...]) -> str:
    paragraphs = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return f'<h2>How this was measured</h2><div class="notes">{paragraphs}</div>' if notes else ""


def _section(title: str, items: list[str]) -> str:
    return f'<h2>{title}</h2><section class="grid wide">{"".join(items)}</section>' if items else ""


def _card(name: str, metric: Metric) -> str:
    interval = metric.interval
    spread = "" if interval is None else f"<small>{rounded(interval[0])} to {rounded(interval[1])}</small>"
    value = f"<b>{rounded(metric.value)}<i>{html.escape(metric.unit)}</i></b>"
    return f'<div class="card"><span>{html.escape(name)}</span>{value}{spread}</div>'


def _verdicts(verdicts: tuple[tuple[str, Outcome, str], ...]) -> str:
    marks = {"ok": ("", "✓"), "FAIL": (" class=no", "✗")}
    lines = ""
    for asked, outcome, numbers in verdicts:
        kind, mark = marks.get(said(outcome), (" class=open", f"{said(outcome)}:"))
        lines += f"<li{kind}><div>{mark} {html.escape(asked)}</div><span>{html.escape(numbers)}</span></li>"
    return f'<ul class="verdicts">{lines}</ul>' if lines else ""


def _figure(figure: Figure) -> str:
    caption = f"<figcaption>{html.escape(figure.text)}</figcaption>" if figure.text else ""
    kind = " class=whole" if figure.wide else ""
    return f"<figure{kind}><h3>{html.escape(figure.title)}</h3>{figure.svg}{caption}</figure>"


def _film(film: Film) -> str:
    data, shape = film_mp4(film), film.frames.shape
    size = f'width="{shape[2] * film.scale}" height="{shape[1] * film.scale}"'
    kind = " class=whole" if shape[2] * film.scale > 520 else ""
    return (
        f"<figure{kind}><h3>{html.escape(film.title)}</h3><video {size} autoplay loop muted playsinline controls "
        f'src="{data_uri(data, "video/mp4")}"></video></figure>'
    )


def film_mp4(film: Film) -> bytes:
    """A film as an H.264 file, enlarged by repeating pixels."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.mp4"
        write_video(path, (enlarge(frame, film.scale) for frame in film.frames), film.fps)
        return path.read_bytes()


def _picture(picture: Picture) -> str:
    data = png(enlarge(picture.frame, picture.scale))
    title, source = html.escape(picture.title), data_uri(data, "image/png")
    return f'<figure class="whole"><h3>{title}</h3><img alt="" src="{source}"></figure>'


def png(frame: NDArray[np.uint8]) -> bytes:
    """A picture [H, W, 3] RGB as a PNG file."""
    return cv2.imencode(".png", cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))[1].tobytes()


def data_uri(data: bytes, kind: str) -> str:
    """Bytes inside an address, so that the page needs no other file."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _text_table(table: Table) -> str:
    def row(cells: tuple[str, ...], kind: str) -> str:
        first, *others = (html.escape(cell) for cell in cells)
        return (
            f"<tr><{kind}>{first}</{kind}>"
            + "".join(f'<{kind} class="number">{cell}</{kind}>' for cell in others)
            + "</tr>"
        )

    text = f'<p class="soft">{html.escape(table.text)}</p>' if table.text else ""
    return f"<table>{row(table.head, 'th')}{''.join(row(cells, 'td') for cells in table.rows)}</table>{text}"


def _table(report: Report) -> str:
    rows = []
    for name, metric in report.metrics.items():
        interval = metric.interval
        spread = "" if interval is None else f"{rounded(interval[0])} to {rounded(interval[1])}"
        cells = (rounded(metric.value), html.escape(metric.unit), spread, "" if metric.n is None else f"{metric.n:,}")
        value, unit, spread, n = cells
        rows.append(
            f'<tr><td><code>{html.escape(name)}</code></td><td class="number">{value}</td><td>{unit}</td>'
            f'<td class="number">{spread}</td><td class="number">{n}</td></tr>'
        )
    head = (
        '<tr><th>metric</th><th class="number">value</th><th>unit</th><th class="number">95 % interval</th>'
        '<th class="number">n</th></tr>'
    )
    return f"<table>{head}{''.join(rows)}</table>"
