"""The record of resets: who reset what, when, what was killed, and how each node ended.

SQLite in the state folder. Only real resets are recorded; a dry run, a status and a check change
nothing and leave nothing. A record that can't be written is a warning and never costs a verdict.
Knows no node and no screen: documents of nodes are handed in as plain data.
"""

from gpufleet.history.places import reading_files, writing_folder
from gpufleet.history.reading import Entry, Failed, failed, find_run, load_run, runs
from gpufleet.history.recorder import Recorder, Start

__all__ = [
    "Entry",
    "Failed",
    "Recorder",
    "Start",
    "failed",
    "find_run",
    "load_run",
    "reading_files",
    "runs",
    "writing_folder",
]
