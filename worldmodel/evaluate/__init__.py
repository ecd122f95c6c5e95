"""Measuring a world model: `evaluate_drift`, `evaluate_actions` and `evaluate_latency`, each in its own module,
`evaluate_compare` in its own folder.

They take a `WorldModel` and `Recordings` (recordings.py), know no dataset, and return a `Report` (report.py), which
`write` (report_files.py) turns into JSON and one HTML file.
"""
