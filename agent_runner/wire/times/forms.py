"""The table of accepted forms. A time is a sequence of them ("tomorrow" "at 9am"), each read by one row.

`docs/times.md` is generated from this table. The first shape that matches is used, so longer ones come first.
"""

from __future__ import annotations

from agent_runner.wire.times import clock_forms, day_forms, repeat_forms, span_forms
from agent_runner.wire.times.model import Form

FORMS: tuple[Form, ...] = (
    *repeat_forms.FORMS,
    *repeat_forms.START,
    *span_forms.FORMS,
    *clock_forms.FORMS,
    *day_forms.FORMS,
    *span_forms.ALONE,
)
