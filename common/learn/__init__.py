"""What the verbs of course.py do for learners. The modules here need nothing but Python."""
