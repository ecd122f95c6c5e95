"""`evaluate compare`: drift and action following of several ways to train, several training seeds each.

evaluate.py    from arms and recordings to the report
arms.py        which models are compared, and what was measured of them
bench.py       what every model is measured on
reader.py      the probe that reads actions from what models show
measure.py     what is measured of one model
keep.py        measurements on disk
statistics.py  estimates over seeds, their intervals, bars
show.py        estimates as metrics, in tables and sentences, as curves
distances.py, following.py, closeness.py
               three kinds of numbers: each with its metrics, tables, verdicts and plots
sheets.py      contact sheets and films
notes.py       how it was measured
"""

from worldmodel.evaluate.compare.arms import Arm, parse_arms
from worldmodel.evaluate.compare.bench import CompareSettings
from worldmodel.evaluate.compare.evaluate import evaluate_compare

__all__ = ["Arm", "CompareSettings", "evaluate_compare", "parse_arms"]
