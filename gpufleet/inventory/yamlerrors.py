"""Why a text isn't YAML, in words for the author of fleet.yaml. Pure: text in, words out."""

from __future__ import annotations

import itertools
import re
import unicodedata

import yaml

from gpufleet.inventory.problems import Problems, show

_RANGE = re.compile(r"""[\w.-]*[\w.]\[[0-9,/-]+\][\w.-]*""")
_IPV6 = re.compile(r"[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:]*")

# YAML 1.1 takes these for line ends and editors don't: text after one in a comment would be live.
_HIDDEN_LINE_ENDS = "\x85\u2028\u2029"
_REFUSED = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\u2028\u2029\\ufffe\\uffff]")


def refuse_characters(text: str, problems: Problems) -> None:
    """Name each control character and each line end that no editor shows."""
    line = done = 0
    for found in itertools.islice(_REFUSED.finditer(text), 10):
        line += text.count("\n", done, found.start())
        done = found.start()
        char = found[0]
        what = "ends a line in YAML only" if char in _HIDDEN_LINE_ENDS else "a control character"
        name = unicodedata.name(char, "")
        said = f"U+{ord(char):04X} {name}".strip()
        problems.add(line + 1, "", f"read {said}: {what}: remove it")
    problems.check()


def explain(error: yaml.YAMLError, text: str) -> tuple[int, str, str]:
    """Line, column and cure of a syntax error."""
    problem = str(getattr(error, "problem", None) or error).replace("\n", " ")
    context = str(getattr(error, "context", None) or "")
    mark = getattr(error, "problem_mark", None)
    start = getattr(error, "context_mark", None)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if mark is None:
        return 0, "", problem
    # At the end of the file the mark says nothing, but the start of what never ended does.
    if start is not None and not lines[min(mark.line, len(lines) - 1)].strip():
        mark = start
    # The surroundings are enough, and a line of megabytes would keep the expressions busy.
    start_column = max(0, mark.column - 200)
    line = lines[min(mark.line, len(lines) - 1)][start_column : mark.column + 200]
    cure = _cure(line, mark.column - start_column, problem, context)
    return mark.line + 1, f"column {mark.column + 1}", cure


def _cure(line: str, column: int, problem: str, context: str) -> str:
    """The first that fits, most telling first."""
    read = f"read {show(line.strip())}"
    char = line[column : column + 1]
    indentation = line[: len(line) - len(line.lstrip())]
    ranges = _RANGE.search(line)
    address = _IPV6.search(line)
    if "\t" in indentation or char == "\t":
        return "a tab: YAML is indented with blanks"
    if "quoted scalar" in context and "escape" not in problem:
        return "a quote that isn't closed"
    if "flow" in context and ranges:
        return f'inside [ ] and {{ }} a range wants quotes: "{ranges[0]}"'
    if address and not re.search(r"""["']""", line):
        return f'an IPv6 address wants quotes: "{address[0]}"'
    if char and char in "@`%":
        return f'text that starts with {char} wants quotes: "{line[column:].strip()}"'
    if "nesting depth" in problem:
        return "nested too deeply"
    if "flow" in context and not line.strip():
        return "the file ends inside a [ or {: close it"
    if "expected key" in problem or "block end" in problem:
        return f"an indentation that differs from the lines above, or missing quotes: {read}"
    if "mapping values" in problem:
        return f"a second key on this line, or an indentation that differs: {read}"
    if "flow" in context:
        opened = "[" if "sequence" in context else "{"
        return f"after this {opened} a comma or its end is missing: {problem}"
    if "expected ':'" in problem:
        return f'{read}: a ":" is missing'
    return f"not YAML: {problem}"
