"""Measuring a swap: `evaluate_swap` streams methods side by side and returns a report (worldmodel/evaluate/report.py).

case, regions, video   what is swapped: videos of regions with their truth; stretches of real ones, as `swap` does it
methods                who swaps: trained generators, baselines, and the two ends of the scale
judge, reader          who is seen, never by the recogniser that taught a generator; where the landmarks are
meter                  what is measured of every frame while the streams run
fidelity, seam, warping, head_pose, slope     the measures
axes, summary, result  one number per video and axis; means over people, intervals, differences, ranks
report, sheet          how it is shown

It knows no data set.
"""
