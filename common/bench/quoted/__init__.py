"""Every figure that a README quotes, and how it follows from committed results or from arithmetic.

    python -m common.bench.quoted            what disagrees with the results, or follows from nothing
    python -m common.bench.quoted --write    write the figures of the results into the READMEs

Each module declares the figures of one document in a function `declared`; passages.py has the kinds of declarations,
and sources.py reads the results.
"""
