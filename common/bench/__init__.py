"""How the course measures: one discipline, one set of metric definitions, one look for the plots."""
