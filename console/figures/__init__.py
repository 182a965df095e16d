"""Figures, defined once with plotly for the page, the API and reports.

Importing plotly costs 25 MB and a tenth of a second: import these modules where a figure is asked for.
"""
