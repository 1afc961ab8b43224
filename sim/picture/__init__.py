"""Pictures of a run: one HTML page that needs nothing else, and a trace for Perfetto or chrome://tracing.

    model      what the rows of a trace mean, as things that can be drawn: lanes, messages, spans, marks
    page       the HTML page: `page.html` with the model's data in it
    perfetto   the same model in the Chrome trace format

Only judged runs can be drawn, with all their rows. Must not know how runs are made or judged.
"""

from sim.picture.page import html
from sim.picture.perfetto import perfetto

__all__ = ["html", "perfetto"]
