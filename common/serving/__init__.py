"""The server of stages 03 to 08: engine thread, HTTP, OpenAI's API, limits and metrics. README.md describes it."""
