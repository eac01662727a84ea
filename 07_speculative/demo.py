from common.demo import *


def demo(engine, loaded):
    r = show_answers(engine)
    print(engine.stats())
    check_against_reference(loaded, r)
