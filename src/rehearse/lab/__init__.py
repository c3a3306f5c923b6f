"""The laboratory: named methods, streams and settings, single runs and campaigns, the paper's tables, reports, and the
command line `rehearse`. It builds on the library and needs the extra ``rehearse-torch[lab]``; no library module imports
it.
"""
