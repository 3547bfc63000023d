"""fleet.yaml as text: what YAML must not do to it, and what is said when it isn't YAML."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.errors import InventoryError
from gpufleet.inventory import Fleet, load_fleet, yamltext
from gpufleet.inventory.nodes import plain
from gpufleet.inventory.problems import Problems

Load = Callable[[str], Fleet]
Refused = Callable[[str], list[str]]


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def load(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """With libyaml's parser and with PyYAML's own, which word their errors differently."""
    monkeypatch.setattr(yamltext, "LOADER", getattr(yaml, request.param, yaml.SafeLoader))
    monkeypatch.chdir(tmp_path)

    def write_and_load(text: str) -> Fleet:
        path = Path("fleet.yaml")
        path.write_bytes(text.encode())
        path.chmod(0o600)
        return load_fleet(path)

    return write_and_load


@pytest.fixture
def refused(load: Load) -> Refused:
    def problems_of(text: str) -> list[str]:
        with pytest.raises(InventoryError) as caught:
            load(text)
        assert str(caught.value) == "\n".join(caught.value.problems)
        return list(caught.value.problems)

    return problems_of


def test_d01_groups_named_no_and_on_work_as_written(load: Load) -> None:
    fleet = load("hosts:\n  gpu-01:\n  gpu-02:\ngroups:\n  no: [gpu-01]\n  on: [gpu-02]\n")
    assert fleet.groups() == {"no": ("gpu-01",), "on": ("gpu-02",)}


@pytest.mark.parametrize("word", ["no", "y", "null", "true", "1e3", "2001-01-01", "0x1f", "1_0"])
def test_words_that_yaml_would_type_stay_names(load: Load, word: str) -> None:
    assert load(f"hosts:\n  {word}: 192.0.2.1\n").names() == (word,)


@pytest.mark.parametrize("text", ["010", "22:22", "10.10", "no", "=", ".inf", "0b1", "12:30:45"])
def test_unquoted_values_stay_text(text: str) -> None:
    node = yamltext.read_yaml(f"a: {text}\n", Problems("fleet.yaml"))
    assert node is not None
    assert plain(node) == {"a": text}


@pytest.mark.parametrize(("text", "value"), [("~", None), ("", None), ("'~'", "~"), ("''", "")])
def test_only_nothing_and_a_bare_tilde_are_null(text: str, value: str | None) -> None:
    node = yamltext.read_yaml(f"a: {text}\n", Problems("fleet.yaml"))
    assert node is not None
    assert plain(node) == {"a": value}


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp", "Cn", "Cs"])))
def test_any_text_comes_back_as_it_was_written(text: str) -> None:
    for written in (yaml.safe_dump([text], allow_unicode=True), yaml.safe_dump([text])):
        node = yamltext.read_yaml(written, Problems("fleet.yaml"))
        assert node is not None
        assert plain(node) == [text]


@given(st.text(st.sampled_from("ab:-[]{}&*!|>'\"%@`#,? \n\t~<0."), max_size=40))
def test_no_text_ends_in_anything_but_data_or_problems(text: str) -> None:
    try:
        yamltext.read_yaml(text, Problems("fleet.yaml"))
    except InventoryError as error:
        assert all(line.startswith("fleet.yaml") for line in error.problems)  # noqa: PT017


def test_bom_crlf_and_blanks_that_do_no_harm_are_taken(load: Load) -> None:
    text = "\ufeffhosts:\r\n  gpu01 :  192.0.2.1   # ok\u00a0\r\n\r\n  gpu02: {}\r\n"
    assert load(text).names() == ("gpu01", "gpu02")


def test_d03_duplicate_section_is_refused_with_both_lines(refused: Refused) -> None:
    assert refused("hosts:\n  gpu-01: 192.0.2.11\nhosts:\n  gpu-02: 192.0.2.12\n") == [
        'fleet.yaml:3: hosts: read "hosts" twice, first on line 1: keep one'
    ]


def test_d03_duplicate_host_is_refused_with_both_lines(refused: Refused) -> None:
    assert refused("hosts:\n  gpu-01: 192.0.2.11\n  gpu-01: 192.0.2.99\n") == [
        'fleet.yaml:3: hosts.gpu-01: read "gpu-01" twice, first on line 2: keep one'
    ]


def test_d04_a_tab_is_called_a_tab(refused: Refused) -> None:
    assert refused("hosts:\n\tgpu-01: 192.0.2.11\n") == [
        "fleet.yaml:2: column 1: a tab: YAML is indented with blanks"
    ]


def test_d04_an_open_quote_is_found_where_it_opens(refused: Refused) -> None:
    assert refused("hosts:\n  gpu-01: {address: '192.0.2.11}\n") == [
        "fleet.yaml:2: column 21: a quote that isn't closed"
    ]


def test_d06_an_unquoted_range_in_a_list_is_told_to_want_quotes(refused: Refused) -> None:
    assert refused("hosts:\n  gpu[01-08]: {}\ngroups:\n  train: [gpu[01-04], gpu07]\n") == [
        'fleet.yaml:4: column 14: inside [ ] and { } a range wants quotes: "gpu[01-04]"'
    ]


def test_d14_an_unquoted_bracketed_ipv6_address_is_told_to_want_quotes(refused: Refused) -> None:
    assert refused("hosts:\n  gpu-01:\n    address: [2001:db8::21]:2222\n") == [
        'fleet.yaml:3: column 28: an IPv6 address wants quotes: "2001:db8::21"'
    ]


def test_d15_a_python_tag_is_refused_and_not_executed(refused: Refused) -> None:
    assert refused("hosts: !!python/object/apply:os.system ['touch canary']\n") == [
        (
            'fleet.yaml:1: hosts: read the tag "!!python/object/apply:os.system": '
            "tags are not used here; text that starts with ! wants quotes"
        )
    ]
    assert not Path("canary").exists()


ALIAS_BOMB = (
    "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n"
        for old, new in zip("abcdef", "bcdefg", strict=True)
    )
    + "groups: {train: *g}\nhosts: {x: 192.0.2.11}\n"
)


def test_d15_an_alias_bomb_is_counted_before_it_costs_anything(refused: Refused) -> None:
    assert refused(ALIAS_BOMB) == [
        "fleet.yaml:7: more than 1,000,000 values, aliases expanded: use ranges and groups"
    ]


def test_d15_an_alias_of_itself_is_refused(refused: Refused) -> None:
    assert refused("groups: &g {train: [*g]}\nhosts: {x: 192.0.2.11}\n") == [
        'fleet.yaml:1: groups.train: read "*g": it contains itself'
    ]


def test_d08_an_empty_file_has_no_hosts(refused: Refused) -> None:
    assert refused("") == ["fleet.yaml: no hosts: list them under hosts:"]


def test_d08_a_file_of_comments_has_no_hosts(refused: Refused) -> None:
    assert refused("# hosts:\n") == ["fleet.yaml: no hosts: list them under hosts:"]


def test_d08_hosts_without_entries_has_no_hosts(refused: Refused) -> None:
    assert refused("hosts:\n") == ["fleet.yaml:1: no hosts: list them under hosts:"]


CASES = {
    "an_unquoted_range_in_a_mapping_is_told_to_want_quotes": (
        "hosts: {gpu[01-08]: {}}\n",
        ['fleet.yaml:1: column 12: inside [ ] and { } a range wants quotes: "gpu[01-08]"'],
    ),
    "an_ipv6_address_that_ends_in_colons_wants_quotes": (
        "hosts:\n  gpu-01: 2001:db8::\n",
        ['fleet.yaml:2: column 20: an IPv6 address wants quotes: "2001:db8::"'],
    ),
    "a_selection_that_starts_like_a_tag_wants_quotes": (
        "hosts: {a: }\ngroups:\n  g: !a\n",
        [
            (
                'fleet.yaml:3: groups.g: read the tag "!a": '
                "tags are not used here; text that starts with ! wants quotes"
            )
        ],
    ),
    "a_merge_bomb_is_counted_too": (
        "a: &a {"
        + ", ".join(f"k{i}: v" for i in range(2000))
        + "}\n"
        + "".join(f"m{i}: {{<<: *a}}\n" for i in range(1000)),
        ["fleet.yaml:250: more than 1,000,000 values, aliases expanded: use ranges and groups"],
    ),
    "an_unknown_alias_wants_quotes": (
        "hosts:\n  a: {workload: *vllm}\n",
        [
            (
                'fleet.yaml:2: hosts.a.workload: read "*vllm": no anchor &vllm before it: '
                'text that starts with * wants quotes, "*vllm"'
            )
        ],
    ),
    "an_anchor_given_twice_is_refused": (
        "hosts:\n  a: &x {}\n  b: &x {}\n",
        ["fleet.yaml:3: hosts.b: the anchor &x again: another name for this one"],
    ),
    "a_group_with_an_at_sign_wants_quotes": (
        "hosts: {a: }\ngroups:\n  g: @a\n",
        ['fleet.yaml:3: column 6: text that starts with @ wants quotes: "@a"'],
    ),
    "deep_nesting_is_refused": (
        "hosts: " + "{a: " * 60 + "}" * 60,
        ["fleet.yaml:1: nested deeper than 50 levels"],
    ),
    "a_second_document_is_refused": (
        "hosts: {a: }\n---\nhosts: {b: }\n",
        ["fleet.yaml:2: a second document (---): keep one per file"],
    ),
    "a_list_at_the_top_is_refused": (
        "- gpu01\n",
        ["fleet.yaml:1: read a list: the file starts with keys, such as hosts:"],
    ),
    "a_word_at_the_top_is_refused": (
        "gpu01\n",
        ['fleet.yaml:1: read "gpu01": the file starts with keys, such as hosts:'],
    ),
    "keys_that_are_no_text_are_refused_all_at_once": (
        "hosts:\n  ? [a]\n  : b\n  ~: c\n",
        [
            "fleet.yaml:2: hosts: read a list or mapping as a key: a key is text",
            "fleet.yaml:4: hosts: read nothing as a key: a key is text",
        ],
    ),
    "a_merge_of_no_mapping_is_refused": (
        "hosts:\n  a: {<<: 3}\n",
        ['fleet.yaml:2: hosts.a.<<: read "3": << takes an alias of a mapping, *name'],
    ),
    "two_merges_are_one_list": (
        "hosts:\n  a: &x {}\n  b:\n    <<: *x\n    <<: *x\n",
        ['fleet.yaml:5: hosts.b.<<: read "<<" twice, first on line 4: use one list, <<: [*a, *b]'],
    ),
    "a_line_end_that_no_editor_shows_is_named": (
        "hosts:\n  a: {}\n  # x\u2028  b: {}\n",
        ["fleet.yaml:3: read U+2028 LINE SEPARATOR: ends a line in YAML only: remove it"],
    ),
    "a_control_character_is_named": (
        "hosts:\n  a: \x07\n",
        ["fleet.yaml:2: read U+0007: a control character: remove it"],
    ),
    "a_blank_that_nobody_sees_is_named": (
        "hosts:\n  gpu\u00a001: {}\n  gpu\u200b02: {}\n",
        [
            (
                'fleet.yaml:2: hosts.gpu<U+00A0>01: read "gpu<U+00A0>01": '
                "U+00A0 can't stand in a name: retype it"
            ),
            (
                'fleet.yaml:3: hosts.gpu<U+200B>02: read "gpu<U+200B>02": '
                "U+200B can't stand in a name: retype it"
            ),
        ],
    ),
    "a_key_of_two_lines_makes_one_line_of_problem": (
        'hosts:\n  "a\\nb": {}\n',
        [
            (
                'fleet.yaml:2: hosts.a<U+000A>b: read "a<U+000A>b": '
                "U+000A can't stand in a name: retype it"
            )
        ],
    ),
    "a_wrong_indentation_is_called_so": (
        "hosts:\n  a: {}\n b: {}\n",
        [
            (
                "fleet.yaml:3: column 2: an indentation that differs from the lines above, "
                'or missing quotes: read "b: {}"'
            )
        ],
    ),
    "an_open_brace_is_found_at_the_end": (
        "hosts: {a: {\n",
        ["fleet.yaml:2: column 1: the file ends inside a [ or {: close it"],
    ),
    "two_keys_on_a_line_are_called_so": (
        "hosts:\n  a: port: 22\n",
        [
            (
                "fleet.yaml:2: column 10: a second key on this line, or an indentation that "
                'differs: read "a: port: 22"'
            )
        ],
    ),
    "a_missing_colon_is_called_so": (
        "hosts:\n  a: {}\n  b\n",
        ['fleet.yaml:3: column 3: read "b": a ":" is missing'],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_problem_line(case: str, refused: Refused) -> None:
    text, problems = CASES[case]
    assert refused(text) == problems


def test_d15_an_alias_bomb_takes_little_memory(refused: Refused) -> None:
    tracemalloc.start()
    refused(ALIAS_BOMB)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def test_ten_thousand_brackets_are_an_error_and_no_crash(refused: Refused) -> None:
    (problem,) = refused("x: " + "[" * 10_000)
    assert "nested" in problem


def test_anchors_and_merge_keys_carry_settings(load: Load) -> None:
    fleet = load(
        "hosts:\n"
        "  a: &old {gpus: 4, port: 2222}\n"
        "  b: {<<: *old, port: 22}\n"
        "  c: *old\n"
        "  d: {<<: [{gpus: 1}, *old]}\n"
    )
    read = [fleet.spec(name) for name in fleet.names()]
    assert [(spec.policy.gpus, spec.access.port) for spec in read] == [
        (4, 2222),
        (4, 22),
        (4, 2222),
        (1, 2222),
    ]


def test_a_problem_in_an_anchor_is_told_where_it_stands(refused: Refused) -> None:
    text = "hosts:\n  a: &bad {gpus: 0}\n  b: {port: 0, <<: *bad}\n"
    assert refused(text) == [
        'fleet.yaml:2: hosts.a.gpus: read "0": a node has 1 to 64 GPUs',
        'fleet.yaml:2: hosts.b.gpus: read "0": a node has 1 to 64 GPUs',
        'fleet.yaml:3: hosts.b.port: read "0": a port is 1 to 65535',
    ]


def test_all_problems_come_at_once_sorted_by_line(refused: Refused) -> None:
    text = (
        "groups:\n  train: [gpu01, gpu99]\n"
        "hosts:\n  gpu01: {prot: 22}\n  gpu02: {gpus: eight, port: 70000}\n  gpu01: {}\n"
        "defualts: {}\n"
    )
    assert refused(text) == [
        'fleet.yaml:2: groups.train: unknown host or group "gpu99"',
        'fleet.yaml:4: hosts.gpu01.prot: read the unknown key "prot" (did you mean port?)',
        'fleet.yaml:5: hosts.gpu02.gpus: read "eight": a node has 1 to 64 GPUs',
        'fleet.yaml:5: hosts.gpu02.port: read "70000": a port is 1 to 65535',
        'fleet.yaml:6: hosts.gpu01: read "gpu01" twice, first on line 4: keep one',
        'fleet.yaml:7: read the unknown key "defualts" (did you mean defaults?)',
    ]
