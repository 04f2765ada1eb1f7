"""The page of tools.compare: tables and curves in one file without scripts. Pointing at a run brings it out."""

import html
import math

from tools.compare_runs import Run
from tools.html_page import html_page

MARK = "segtrain: runs side by side"  # in each page, which a later one may replace
WIDTH, HEIGHT = 600, 280  # of the area with the curves; SVG scales to the window
MAX_POINTS = 500  # of a curve, which is more than its area shows
SHOWN = 0.98  # share of the losses that fit: a run that diverges would flatten all other curves
GOLDEN_ANGLE = 137.5  # degrees between the hues of two runs, which keeps any number of them apart
HINT = """Point at a curve or a row, and the other runs fade. The run with the best score (the mIoU, or a single
object's IoU) comes first. The axis of the losses leaves out the largest 2 %."""
STYLE = """body { max-width: 1360px; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 12px; }
figure { margin: 0; }
figure > svg { display: block; width: 100%; height: auto; }
line { stroke: var(--line); }
text { fill: CanvasText; font-size: 12px; text-anchor: middle; }
text.y { text-anchor: end; }
.curve { fill: none; stroke: hsl(var(--hue) 60% 50%); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 7px 14px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; }
th:first-child { text-align: left; }
tr th i { display: inline-block; width: 18px; height: 4px; margin: 0 10px 3px 0; background: hsl(var(--hue) 60% 50%); }
"""


def page(runs: list[Run], tables: dict[str, dict[str, list[str]]]) -> str:
    """Return the HTML page, ASCII only. tables: {heading: {title of a column: a text for each run}}."""
    rules = [
        f".r{number} {{ --hue: {(210 + GOLDEN_ANGLE * number) % 360:g} }}\n"
        f"body:has(.r{number}:hover) .curve:not(.r{number}) {{ opacity: .1 }}\n"
        f"body:has(.r{number}:hover) tr.r{number} {{ background: var(--line) }}"
        for number in range(len(runs))
    ]
    names = [html.escape(run.name) for run in runs]
    mious = [[(step, 100 * miou) for step, miou in run.miou] for run in runs]
    losses = sorted(loss for run in runs for _, loss in run.loss)
    charts = [
        _chart("Validation mIoU in %", names, mious, max((miou for curve in mious for _, miou in curve), default=1.0)),
        _chart("Training loss", names, [run.loss for run in runs], losses[int(SHOWN * len(losses))] if losses else 1.0),
    ]
    body = [f'<!-- {MARK} --><p>{HINT}</p><div class="charts">', *charts, "</div>"]
    body += [f"<h2>{title}</h2>{_table(names, columns)}" for title, columns in tables.items()]
    title = f"{len(runs)} run{'s' if len(runs) > 1 else ''} side by side"
    return html_page(title, STYLE + "\n".join(rules), "\n".join(body))


def _table(names: list[str], columns: dict[str, list[str]]) -> str:
    """Return a table with a row for each run. names: of the runs, escaped."""
    rows = [f"<tr>{''.join(f'<th>{html.escape(title)}</th>' for title in ('run', *columns))}</tr>"]
    for number, (name, *cells) in enumerate(zip(names, *columns.values(), strict=True)):
        data = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        rows.append(f'<tr class="r{number}"><th><i></i>{name}</th>{data}</tr>')
    return f'<div class="scroll"><table>{"".join(rows)}</table></div>'


def _chart(title: str, names: list[str], curves: list[list[tuple[int, float]]], most: float) -> str:
    """Return curves over each other, [(step, value), ...] of each run, as SVG. Values above `most` are cut off."""
    last_step = max([1, *(step for curve in curves for step, _ in curve)])
    y_ticks = _ticks(min((value for curve in curves for _, value in curve), default=0.0), most)
    low, x_scale, y_scale = y_ticks[0], WIDTH / last_step, HEIGHT / (y_ticks[-1] - y_ticks[0])
    marks, lines = [], []
    for tick in y_ticks:
        y = f"{HEIGHT - y_scale * (tick - low):.1f}"
        marks.append(f'<line x2="{WIDTH}" y1="{y}" y2="{y}"/><text x="-8" y="{y}" dy="4" class="y">{tick:g}</text>')
    for tick in (tick for tick in _ticks(0.0, last_step) if tick <= last_step):
        marks.append(f'<text x="{x_scale * tick:.1f}" y="{HEIGHT + 18}">{tick:g}</text>')
    for number, (name, curve) in enumerate(zip(names, curves, strict=True)):
        points = curve[::-1][:: math.ceil(len(curve) / MAX_POINTS) or 1][::-1]  # keeps the last one
        places = [f"{x_scale * step:.1f} {HEIGHT - y_scale * (value - low):.1f}" for step, value in points]
        path = "M" + "L".join([*places, places[-1]]) if places else ""  # the last place twice: a single one is a dot
        lines.append(f'<path class="curve r{number}" d="{path}"><title>{name}</title></path>')
    area = f'<svg width="{WIDTH}" height="{HEIGHT}">{"".join(lines)}</svg>'  # an inner svg cuts off what is outside
    picture = f'<svg viewBox="-60 -10 {WIDTH + 80} {HEIGHT + 36}">{"".join(marks)}{area}</svg>'
    return f"<figure><figcaption>{title} over optimizer steps</figcaption>{picture}</figure>"


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers, at least two, from at most `low` to at least `high`."""
    rough = (high - low or abs(high) or 1.0) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next((factor for factor in (1, 2, 5) if factor * power >= rough), 10)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * number for number in range(first, max(last, first + 1) + 1)]
