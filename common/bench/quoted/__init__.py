"""Every figure that READMEs and the questions of `predict` quote, and how it follows from results or from arithmetic.

    python -m common.bench.quoted            what disagrees with the results, or follows from nothing
    python -m common.bench.quoted --write    write the figures of the results there

Each module declares the figures of one document or of several. passages.py has the kinds of declarations; sources.py
reads the committed results.
"""
