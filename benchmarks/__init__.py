"""Benchmarks, one folder each: ``python -m benchmarks.NAME [--tiny] [--out FILE]``.

A benchmark is a folder ``benchmarks/NAME/`` with a ``__main__.py`` and a ``benchmark.toml``; it
writes ``benchmarks/results/NAME.json`` through ``benchmarks.harness``, and ``benchmarks.render``
makes ``docs/benchmarks.md`` of all those files.
"""
