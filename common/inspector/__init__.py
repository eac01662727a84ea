"""The inspector: a page in the browser that shows an engine at work, step by step. `python3 course.py watch 05`.

    engine thread                         event loop                    browser
    Watched ─────── View.update ────────> Feed ── server-sent events ──> page/store.js ──> panels
    EngineThread <── submit, abort ─────  routes.py <── plain requests ─ page/controls.js

The engine stays as it is. `Watched` is one of its hooks, as `Measured` of common/serving is. It reads the trace and
the books between two steps, on the engine's thread, at a limited rate, and only while a page is open.
"""
