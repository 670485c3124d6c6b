"""The dashboard: pages for people, rendered here and served beside the API by the same process.

`table` has a row for each page, `visit` is one request to one, `rendering` makes HTML of a template. Each other module
is one page: it reads what the page shows and names the template. Rules, filters, sentences and actions are those of
the API and the command line.
"""
