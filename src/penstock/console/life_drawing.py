"""The life of a message as lanes: one for each group, a mark for each event, left to right.

Times lie far apart and close together in one life, so the distance between two marks is the same
and the time is written below; the table beneath the drawing has the same facts.
"""

from __future__ import annotations

from markupsafe import Markup

from penstock.admin.message_life import LifeEvent, MessageLife
from penstock.console.templating import Times, moment

MAX_LANES = 20
MAX_MARKS = 40
STEP, LANE, LEFT = 92, 56, 150
_LABELS = {
    "sent": "sent",
    "stored": "stored",
    "delayed": "kept back",
    "failed": "failed",
    "dead": "dead",
    "redriven": "redriven",
    "handled": "handled",
    "passed": "passed",
    "waiting": "waits",
}


def draw_life(life: MessageLife, times: Times) -> Markup:
    """The lanes of a life as SVG."""
    lanes: list[tuple[str, list[LifeEvent]]] = [("message", life.of_group(None))]
    lanes += [(group, life.of_group(group)) for group in life.groups[: MAX_LANES - 1]]
    first = len(lanes[0][1])
    width = LEFT + STEP * (first + max((len(events) for _, events in lanes[1:]), default=0)) + 20
    # Branches lie below everything else, so that no line crosses a mark.
    parts = [_branch(number, LEFT + first * STEP) for number in range(1, len(lanes))]
    parts += [
        _lane(number, name, events[:MAX_MARKS], 0 if number == 0 else first, times)
        for number, (name, events) in enumerate(lanes)
    ]
    height = LANE * len(lanes) + 16
    return Markup(
        '<svg class="life" viewBox="0 0 {} {}" width="{}" height="{}" role="img" '
        'aria-label="The life of the message; the table below has the same events">{}</svg>'
    ).format(width, height, width, height, Markup("").join(parts))


def _lane(number: int, name: str, events: list[LifeEvent], shift: int, times: Times) -> Markup:
    middle = 24 + number * LANE
    start = LEFT + shift * STEP
    end = start + STEP * max(0, len(events) - 1)
    marks = Markup("").join(
        _mark(start + STEP * place, middle, event, times) for place, event in enumerate(events)
    )
    shown = name if len(name) <= 19 else f"{name[:18]}…"
    return Markup(
        '<text class="lane" x="0" y="{}">{}<title>{}</title></text>'
        '<path class="way" d="M{} {}H{}"/>{}'
    ).format(middle + 4, shown, name, start, middle, end, marks)


def _branch(number: int, start: int) -> Markup:
    """The line from the stored message to the lane of a group, past the time below the mark."""
    middle = 24 + number * LANE
    stored = start - STEP
    return Markup('<path class="way" d="M{} 24H{}C{} 24 {} {} {} {}"/>').format(
        stored, stored + 34, stored + 64, stored + 50, middle, start, middle
    )


def _mark(x: int, y: int, event: LifeEvent, times: Times) -> Markup:
    when = moment(event.at_ms, times.zone)
    below = f"{when:%H:%M:%S}" if when else ""
    title = f"{event.text}{': ' + event.reason if event.reason else ''}"
    if event.kind in ("failed", "dead"):
        shape = Markup('<path d="M{} {}l10 10m0 -10l-10 10"/>').format(x - 5, y - 5)
    else:
        shape = Markup('<circle cx="{}" cy="{}" r="6"/>').format(x, y)
    return Markup(
        '<g class="event {}">{}<text class="what" x="{}" y="{}">{}</text>'
        '<text class="when" x="{}" y="{}">{}</text><title>{}</title></g>'
    ).format(
        event.kind,
        shape,
        x,
        y - 11,
        _LABELS.get(event.kind, event.kind),
        x,
        y + 20,
        below,
        title,
    )
