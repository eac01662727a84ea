"""The suite: `python3 course.py test`."""
