"""The evidence of a run: files with a hash, the final URL and a screenshot, a console and network summary, redacted."""
