"""`python3 course.py book`: the course's pages as a static site that is read without a network."""
