"""What a screen shows, as nested dictionaries of displayed values: the page renders them, the feed sends changes.

A list of dictionaries, each with an `id`, is a list of rows.
"""
