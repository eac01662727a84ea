"""What the verbs of course.py do for learners. What makes or reads their files needs nothing but Python."""
