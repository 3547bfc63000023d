"""Groups, selections and settings of a loaded fleet."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.errors import InventoryError, SelectionError
from gpufleet.inventory import Fleet, fold, load_fleet
from gpufleet.policy import Hooks, Policy

Load = Callable[[str], Fleet]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)

    def write_and_load(text: str) -> Fleet:
        path = Path("fleet.yaml")
        path.write_text(text)
        path.chmod(0o600)
        return load_fleet(path)

    return write_and_load


FLEET = """
jump_hosts:
  bastion: 198.51.100.4
hosts:
  gpu[01-16]: {}
  gpu[9-11]x: {}
  odd: {}
groups:
  inference-pool: gpu[01-08]
  training: ["gpu[09-16]", odd]
  rack.1: inference-pool
  rack.2: ["@training", gpu9x]
  rest: all!rack.1
  spare:
  old: []
  mixed: [spare, odd]
"""


@pytest.fixture
def loaded(load: Load) -> Fleet:
    return load(FLEET)


SELECTIONS = {
    "odd": "odd",
    "gpu03": "gpu03",
    "gpu[01-03]": "gpu[01-03]",
    "gpu[03,01]": "gpu[01,03]",
    "gpu[01-05/2]": "gpu[01,03,05]",
    "inference-pool": "gpu[01-08]",
    "@inference-pool": "gpu[01-08]",
    "rack.[1-2]": "gpu[01-16],gpu9x,odd",
    "@rack.[1-2]": "gpu[01-16],gpu9x,odd",
    "rack.1": "gpu[01-08]",
    "rest": "gpu[09-16],gpu[9-11]x,odd",
    "mixed": "odd",
    " odd , gpu01 ": "gpu01,odd",
    "odd,odd,odd": "odd",
    "all": "gpu[01-16],gpu[9-11]x,odd",
    "@all": "gpu[01-16],gpu[9-11]x,odd",
    "training!odd": "gpu[09-16]",
    "all ! training ! inference-pool": "gpu[9-11]x",
    "training&rack.2": "gpu[09-16],odd",
    "gpu[01-04]^gpu[03-06]": "gpu[01-02,05-06]",
    "odd!odd,gpu01": "gpu01",
    "gpu01,gpu02&gpu02,gpu03": "gpu[02-03]",
    "all!spare&odd": "odd",
}


@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_selection_means(selection: str, loaded: Fleet) -> None:
    assert fold(loaded.resolve(selection)) == SELECTIONS[selection]


REFUSED = {
    "": "the selection is empty: name hosts or groups, or all",
    "  ": "the selection is empty: name hosts or groups, or all",
    "gpu17": 'unknown host or group "gpu17"',
    "GPU01": 'unknown host or group "GPU01" (did you mean gpu01?)',
    "gpuO1": 'unknown host or group "gpuO1" (did you mean gpu01?)',
    "gpu-01": 'unknown host or group "gpu-01" (did you mean gpu01?)',
    "gpu[1-4]": 'unknown host or group "gpu[1-4]" (did you mean gpu01?)',
    "gpu[15-18]": 'unknown host or group "gpu[17-18]" in "gpu[15-18]"',
    "trainig": 'unknown host or group "trainig" (did you mean training?)',
    "@trainig": 'unknown group "trainig" (did you mean training?)',
    "@odd": "odd is a host, not a group: leave out the @",
    "@": 'read "@": a group\'s name goes after @',
    "bastion": "bastion is a jump host: never selected, never reset",
    "odd,bastion": "bastion is a jump host: never selected, never reset",
    "gpu*": 'read "gpu*": no wildcards here: gpu[01-16], a group, or all',
    "gpu01 gpu02": 'read "gpu01 gpu02": a comma is missing before "gpu02"',
    "gpu01,,gpu02": 'read "gpu01,,gpu02": a name is missing before ,',
    "gpu01,": 'read "gpu01,": a name is missing at the end',
    ",gpu01": 'read ",gpu01": a name is missing before ,',
    "!gpu01": 'read "!gpu01": a name is missing before !',
    "all!": 'read "all!": a name is missing at the end',
    "gpu[01-02": 'read "gpu[01-02": a [ and its ] don\'t match: gpu[01-16]',
    "gpu[01-999999999]": 'read "gpu[01-999999999]": [01-999999999] pads its two ends '
    "differently: 000000001-999999999 or 1-999999999",
    "gpu[1-999999999]": 'read "gpu[1-999999999]": '
    "a range of 999,999,999 names, and 100,000 is the most",
    "odd\u200b": 'read "odd<U+200B>": U+200B is in no name: retype it',
    "odd\nodd": 'read "odd<U+000A>odd": a comma is missing before "odd"',
    "spare": "group spare has no hosts",
    "@old": "group old has no hosts",
    "odd,spare": "group spare has no hosts",
    "odd&gpu01": '"odd&gpu01" selects no hosts',
    "odd!training": '"odd!training" selects no hosts',
    "@failed": 'unknown group "failed"',
    "-oProxyCommand=x": 'unknown host or group "-oProxyCommand=x"',
}


@pytest.mark.parametrize("selection", REFUSED)
def test_a_refused_selection_says_why(selection: str, loaded: Fleet) -> None:
    with pytest.raises(SelectionError) as caught:
        loaded.resolve(selection)
    assert str(caught.value) == REFUSED[selection]


def test_d08_an_empty_group_loads_and_selecting_it_is_an_error(load: Load) -> None:
    fleet = load("hosts:\n  gpu-01: 192.0.2.11\ngroups:\n  spare:\n  old: []\n")
    assert fleet.groups() == {"spare": (), "old": ()}
    with pytest.raises(SelectionError) as caught:
        fleet.select("spare")
    assert str(caught.value) == "group spare has no hosts"


def test_d09_a_circle_of_groups_is_shown(load: Load) -> None:
    text = "hosts:\n  gpu-01: 192.0.2.11\ngroups:\n  a: [b]\n  b: [c, gpu-01]\n"
    assert load(text + "  c: [gpu-01]\n").resolve("a") == ("gpu-01",)
    with pytest.raises(InventoryError) as caught:
        load(text + "  c: [a]\n")
    assert caught.value.problems == (
        "fleet.yaml:4: groups.a: a circle of groups: a > b > c > a: leave one out",
    )


def test_a_group_of_itself_is_a_circle(load: Load) -> None:
    with pytest.raises(InventoryError) as caught:
        load("hosts: {x: }\ngroups:\n  a: '@a'\n")
    assert caught.value.problems == (
        "fleet.yaml:3: groups.a: a circle of groups: a > a: leave one out",
    )


def test_groups_nested_without_end_are_refused_without_a_crash(load: Load) -> None:
    chain = "".join(f"  g{i}: g{i + 1}\n" for i in range(5000))
    with pytest.raises(InventoryError) as caught:
        load(f"hosts: {{x: }}\ngroups:\n{chain}  g5000: x\n")
    assert caught.value.problems == (
        "fleet.yaml:103: groups.g100: groups nested deeper than 100 levels",
    )


def test_groups_that_double_at_each_level_cost_no_more_than_their_names(load: Load) -> None:
    chain = "".join(f"  g{i}: [g{i + 1}, g{i + 1}, x]\n" for i in range(90))
    assert load(f"hosts: {{x: }}\ngroups:\n{chain}  g90: x\n").resolve("g0") == ("x",)


def test_d11_a_misspelt_host_next_to_a_right_one_stops_everything(loaded: Fleet) -> None:
    with pytest.raises(SelectionError) as caught:
        loaded.select("gpu01,gpu-O2")
    assert str(caught.value) == 'unknown host or group "gpu-O2" (did you mean gpu02?)'


def test_d11_a_misspelt_exclusion_stops_everything(loaded: Fleet) -> None:
    with pytest.raises(SelectionError) as caught:
        loaded.select("all", exclude=["gpu01", "gpu-O2"])
    assert str(caught.value) == '--exclude: unknown host or group "gpu-O2" (did you mean gpu02?)'


def test_d11_a_misspelt_limit_stops_everything(loaded: Fleet) -> None:
    with pytest.raises(SelectionError) as caught:
        loaded.select("all", limit="trian")
    assert str(caught.value) == '--limit: unknown host or group "trian"'


def test_d11_a_misspelt_member_of_a_group_is_refused_at_load(load: Load) -> None:
    with pytest.raises(InventoryError) as caught:
        load("hosts:\n  gpu-01:\n  gpu-02:\ngroups:\n  train: [gpu-01,\n    gpu-20, GPU-02]\n")
    assert caught.value.problems == (
        'fleet.yaml:6: groups.train: unknown host or group "GPU-02" (did you mean gpu-02?)',
        'fleet.yaml:6: groups.train: unknown host or group "gpu-20"',
    )


def test_a_thousand_unknown_names_are_told_without_a_thousand_searches(load: Load) -> None:
    members = ", ".join(f"host{i}x" for i in range(1000))
    with pytest.raises(InventoryError) as caught:
        load(f'hosts: {{"hosts[1-2000]": }}\ngroups: {{g: [{members}]}}\n')
    assert len(caught.value.problems) == 101
    assert caught.value.problems[-1].endswith(": 900 more problems")


def test_a_mistake_on_every_line_of_a_large_file_ends_the_reading(load: Load) -> None:
    """20,000 faulty lines were 20,000 lines on the screen, after 7 seconds."""
    with pytest.raises(InventoryError) as caught:
        load("hosts:\n" + "".join(f"  gpu{i:05}: {{adress: 1}}\n" for i in range(20_000)))
    assert len(caught.value.problems) == 101
    assert "(did you mean address?)" in caught.value.problems[0]
    assert caught.value.problems[-1].endswith(": at least 901 more problems")


def test_groups_that_disagree_about_many_hosts_name_some_and_count_the_rest(load: Load) -> None:
    """Folding 20,000 names for each of a hundred conflicts took 24 seconds."""
    with pytest.raises(InventoryError) as caught:
        load(
            "hosts: {'gpu-[00001-00500]': }\ngroups:\n"
            "  one: {hosts: 'gpu-[00001-00500]', gpus: 4}\n"
            "  two: {hosts: 'gpu-[00001-00500]', gpus: 5}\n"
        )
    assert "gpu-[00001-00200] and 300 more is in one (line 3) too" in str(caught.value)


def test_exclusions_are_taken_away_and_the_limit_intersects(loaded: Fleet) -> None:
    assert loaded.resolve("training", exclude=["odd", "gpu[10-16]"]) == ("gpu09",)
    assert loaded.resolve("training", limit="rack.1,odd") == ("odd",)
    assert loaded.resolve("odd", exclude=["spare"]) == ("odd",)


def test_an_empty_result_names_the_options_that_made_it(loaded: Fleet) -> None:
    with pytest.raises(SelectionError) as caught:
        loaded.resolve("odd", exclude=["training", "gpu01"], limit="gpu02")
    assert str(caught.value) == (
        '"odd" with --exclude training --exclude gpu01 --limit gpu02 selects no hosts'
    )


def test_an_empty_exclusion_or_limit_is_an_error_and_not_ignored(loaded: Fleet) -> None:
    for options in ({"exclude": [""]}, {"limit": ""}):
        with pytest.raises(SelectionError) as caught:
            loaded.resolve("odd", **options)
        assert str(caught.value) == (
            f"--{next(iter(options))}: the selection is empty: name hosts or groups, or all"
        )


def test_special_words_are_known_with_their_at_sign_only(loaded: Fleet) -> None:
    special = {"failed": ["gpu02", "odd"], "none": []}
    assert loaded.resolve("@failed!odd", special=special) == ("gpu02",)
    with pytest.raises(SelectionError) as caught:
        loaded.resolve("failed", special=special)
    assert str(caught.value) == 'read "failed": write @failed'
    with pytest.raises(SelectionError) as caught:
        loaded.resolve("@none", special=special)
    assert str(caught.value) == '"@none" selects no hosts'
    with pytest.raises(SelectionError) as caught:
        loaded.resolve("@failed", special={"failed": ["gpu02", "gpu17", "gpu18"]})
    assert str(caught.value) == "@failed: gpu[17-18] isn't in fleet.yaml any more"


def test_all_is_noticed_wherever_it_stands(loaded: Fleet) -> None:
    assert [loaded.mentions_all(text) for text in ("all", "odd,@all!gpu01", "rest", "gpu01")] == [
        True,
        True,
        False,
        False,
    ]


def test_hosts_come_once_each_in_natural_order(load: Load) -> None:
    fleet = load("hosts:\n  n10:\n  n2:\n  b:\n  n1:\n  a1-2:\n  a1-10:\n")
    assert fleet.names() == ("n10", "n2", "b", "n1", "a1-2", "a1-10")
    assert [spec.name for spec in fleet.select("all,n2")] == [
        "a1-2",
        "a1-10",
        "b",
        "n1",
        "n2",
        "n10",
    ]


def test_an_unknown_host_has_no_settings(loaded: Fleet) -> None:
    for ask in (loaded.spec,):
        with pytest.raises(SelectionError) as caught:
            ask("Odd")
        assert str(caught.value) == 'unknown host "Odd" (did you mean odd?)'


def test_settings_come_from_defaults_then_group_then_host_then_command_line(load: Load) -> None:
    fleet = load(
        "defaults: {grace: 1s, attempts: 1, settle: 1s, timeout: 1m, guard: 'one'}\n"
        "hosts:\n  a: {attempts: 3, settle: 3s, guard: ''}\n  b:\n"
        "groups:\n  g: {hosts: 'a,b', grace: 2s, attempts: 2, settle: 2s}\n"
    )
    (a, b) = fleet.select("g", overrides={"settle_s": 4.0, "user": "ops"})
    assert a.policy == Policy(grace_s=2.0, attempts=3, settle_s=4.0, timeout_s=60.0)
    assert b.policy == Policy(grace_s=2.0, attempts=2, settle_s=4.0, timeout_s=60.0)
    assert (a.access.user, fleet.spec("a").access.user) == ("ops", "root")
    assert (fleet.spec("a").hooks, fleet.spec("b").hooks) == (Hooks(), Hooks("one"))


def test_protect_adds_up_over_all_levels_and_patterns_replace(load: Load) -> None:
    fleet = load(
        "defaults: {protect: one, workload: sglang, interpreters: python3}\n"
        "hosts:\n  a: {protect: [four, one], workload: mine}\n"
        "groups:\n"
        "  g: {hosts: a, protect: two, workload: vllm}\n"
        "  h: {hosts: a, protect: three, interpreters: [python, perl]}\n"
    )
    (spec,) = fleet.select("a", overrides={"protect": ("five", "two")})
    assert spec.policy.protect == ("one", "two", "three", "four", "five")
    assert (spec.policy.workload, spec.policy.interpreters) == (("mine",), ("python", "perl"))


def test_a_long_timeout_is_never_longer_than_the_one_while_dying(load: Load) -> None:
    fleet = load("hosts:\n  a: {timeout: 1h}\n  b: {timeout: 1m}\n")
    assert [spec.policy.dying_timeout_s for spec in fleet.select("all")] == [3600.0, 900.0]
    (spec,) = fleet.select("b", overrides={"timeout_s": 1000.0})
    assert (spec.policy.timeout_s, spec.policy.dying_timeout_s) == (1000.0, 1000.0)


def test_an_override_of_no_field_is_a_bug_and_not_ignored(loaded: Fleet) -> None:
    for name in ("grace", "jump", "address"):
        with pytest.raises(TypeError):
            loaded.select("odd", overrides={name: "x"})


DISAGREEING = """hosts:
  a: {}
  b: {}
  c: {grace: 3s}
groups:
  one: {hosts: "a,b,c", grace: 1s, settle: 1s}
  two:
    hosts: [b, c, a]
    grace: 2s
    settle: 1000ms
"""


def test_groups_that_disagree_are_refused_with_both_names_key_and_hosts(load: Load) -> None:
    with pytest.raises(InventoryError) as caught:
        load(DISAGREEING)
    assert caught.value.problems == (
        (
            "fleet.yaml:7: groups.two.grace: a,b is in one (line 6) too, "
            "which gives another grace: set grace at the host, or keep it to one group"
        ),
    )


def test_groups_that_disagree_only_where_the_host_speaks_are_taken(load: Load) -> None:
    fleet = load(
        DISAGREEING.replace("  a: {}", "  a: {grace: 0}").replace("b: {}", "b: {grace: 0}")
    )
    assert [spec.policy.grace_s for spec in fleet.select("all")] == [0.0, 0.0, 3.0]


def test_a_node_spec_can_be_sent_to_another_process(loaded: Fleet) -> None:
    spec = loaded.spec("odd")
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    "hosts",
    ["  gpu-[0001-5000]: {}\n", "".join(f"  gpu-{i:04}: {{gpus: 4}}\n" for i in range(1, 5001))],
    ids=["one_range", "single_lines"],
)
def test_d16_five_thousand_hosts_load_and_are_selected(load: Load, hosts: str) -> None:
    fleet = load(f"hosts:\n{hosts}groups:\n  everyone: gpu-[0001-5000]\n")
    specs = fleet.select("everyone", exclude=["gpu-2500"])
    assert (len(specs), specs[0].name, specs[-1].name) == (4999, "gpu-0001", "gpu-5000")
    assert len({id(spec.policy) for spec in specs}) == 1
